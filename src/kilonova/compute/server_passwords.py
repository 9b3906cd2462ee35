"""Routes of a server's password, which its guest generates and encrypts with the server's key pair."""

from __future__ import annotations

from kilonova.compute.api import api
from kilonova.compute.operations.update_metadata import begin_update
from kilonova.compute.servers import model
from kilonova.http import Context, Response

RULE = "os_compute_api:os-server-password:"
PASSWORD = "/servers/{server_id}/os-server-password"


@api.route("GET", PASSWORD, checks=[RULE + "show"], query={})
async def show(ctx: Context, server_id: str) -> Response:
    """Show the encrypted password of a server; empty if there is none."""
    server = await model.find(ctx, ctx.db, server_id, rule=RULE + "show")
    return Response({"password": server.sealed_password or ""})


@api.route("DELETE", PASSWORD, checks=[RULE + "clear"], query={}, status=204)
async def clear(ctx: Context, server_id: str) -> Response:
    """Clear the password of a server. Its guest may then publish a new one."""
    async with ctx.db.transaction() as tx:
        server = await model.find(ctx, tx, server_id, rule=RULE + "clear", lock=True)
        if server.sealed_password:
            await model.clear_password(tx, server_id)
        await begin_update(ctx, tx, server, forgetting=True)
    return Response()
