"""Lock and unlock a server."""

from __future__ import annotations

from kilonova.compute.api import api
from kilonova.compute.servers import action_checks, model
from kilonova.compute.servers.server import Server
from kilonova.http import Context, Response
from kilonova.http.parameter_types import ANYTHING, Schema, closed_object

RULE = "os_compute_api:os-lock-server:"
OVERRIDE = RULE + "unlock:unlock_override"
OWNER, ADMIN = "owner", "admin"

LOCK: Schema = closed_object(
    {"locked_reason": {"type": "string", "minLength": 1, "maxLength": 255}}, type=["object", "null"]
)


@api.action("lock", body=LOCK, checks=[RULE + "lock"], status=202)
async def lock(ctx: Context, server_id: str) -> Response:
    """Lock a server: only administrators may change it."""
    reason = (ctx.body["lock"] or {}).get("locked_reason")
    async with ctx.db.transaction() as tx:
        server = await model.find(ctx, tx, server_id, rule=RULE + "lock", lock=True)
        who = _who(ctx, server)
        # An administrator's lock stays an administrator's.
        if not server.locked or who == ADMIN:
            await model.lock(tx, server_id, reason, who)
            await action_checks.record_action(ctx, tx, server, "lock", f"locked by {who}")
    return Response()


@api.action("unlock", body=ANYTHING, checks=[RULE + "unlock", OVERRIDE], status=202)
async def unlock(ctx: Context, server_id: str) -> Response:
    """Unlock a server. Allowed for the owner of the lock and for administrators."""
    async with ctx.db.transaction() as tx:
        server = await model.find(ctx, tx, server_id, rule=RULE + "unlock", lock=True)
        if server.locked:
            if server.locked_by != _who(ctx, server):
                ctx.authorize(OVERRIDE, model.target(server))
            await model.unlock(tx, server_id)
            await action_checks.record_action(ctx, tx, server, "unlock", "unlocked")
    return Response()


def _who(ctx: Context, server: Server) -> str:
    return OWNER if ctx.token.project_id == server.project_id else ADMIN
