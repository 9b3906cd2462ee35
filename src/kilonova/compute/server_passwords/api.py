"""Routes of the password of a server, which its guest would have encrypted for its key pair.

No guest here gives one away: what it is told of itself, it is told, and not asked for anything.
"""

from __future__ import annotations

from kilonova.compute.api import api
from kilonova.compute.servers import model
from kilonova.http import Answer, Context

RULE = "os_compute_api:os-server-password:"
PASSWORD = "/servers/{server_id}/os-server-password"


@api.route("GET", PASSWORD, checks=[RULE + "show"], query={})
async def show(ctx: Context, server_id: str) -> Answer:
    """Show the encrypted password of a server; empty where there is none."""
    await model.find(ctx, ctx.db, server_id, rule=RULE + "show")
    return Answer({"password": ""})


@api.route("DELETE", PASSWORD, checks=[RULE + "clear"], query={}, status=204)
async def clear(ctx: Context, server_id: str) -> Answer:
    """Forget the password of a server."""
    await model.find(ctx, ctx.db, server_id, rule=RULE + "clear")
    return Answer()
