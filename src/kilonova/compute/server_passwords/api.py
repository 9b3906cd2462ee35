"""Routes of the password of a server, which its guest has made and encrypted for its key pair."""

from __future__ import annotations

from kilonova.compute.api import api
from kilonova.compute.operations.tell_guest import begin_telling
from kilonova.compute.servers import model
from kilonova.http import Answer, Context

RULE = "os_compute_api:os-server-password:"
PASSWORD = "/servers/{server_id}/os-server-password"


@api.route("GET", PASSWORD, checks=[RULE + "show"], query={})
async def show(ctx: Context, server_id: str) -> Answer:
    """Show the encrypted password of a server; empty where there is none."""
    row = await model.find(ctx, ctx.db, server_id, rule=RULE + "show")
    return Answer({"password": row["sealed_password"] or ""})


@api.route("DELETE", PASSWORD, checks=[RULE + "clear"], query={}, status=204)
async def clear(ctx: Context, server_id: str) -> Answer:
    """Forget the password of a server. Its guest may give away another one then."""
    async with ctx.db.transaction() as tx:
        row = await model.find(ctx, tx, server_id, rule=RULE + "clear", lock=True)
        if row["sealed_password"]:
            await tx.execute("UPDATE servers SET sealed_password = NULL WHERE id = $1", server_id)
        await begin_telling(ctx, tx, row, forgetting=True)
    return Answer()
