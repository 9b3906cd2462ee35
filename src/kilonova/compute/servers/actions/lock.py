"""Lock and unlock a server."""

from __future__ import annotations

from kilonova.compute.api import api
from kilonova.compute.servers import action_checks, model
from kilonova.http import Context, Response
from kilonova.http.parameter_types import ANYTHING, Schema, closed_object
from kilonova.store import Row

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
        row = await model.find(ctx, tx, server_id, rule=RULE + "lock", lock=True)
        who = _who(ctx, row)
        # An administrator's lock stays an administrator's.
        if not row["locked"] or who == ADMIN:
            sql = "UPDATE servers SET locked = TRUE, locked_reason = $2, locked_by = $3, updated_at = $4 WHERE id = $1"
            await tx.execute(sql, server_id, reason, who, ctx.now)
            await action_checks.record_action(ctx, tx, row, "lock", f"locked by {who}")
    return Response()


@api.action("unlock", body=ANYTHING, checks=[RULE + "unlock", OVERRIDE], status=202)
async def unlock(ctx: Context, server_id: str) -> Response:
    """Unlock a server. Allowed for the owner of the lock and for administrators."""
    async with ctx.db.transaction() as tx:
        row = await model.find(ctx, tx, server_id, rule=RULE + "unlock", lock=True)
        if row["locked"]:
            if row["locked_by"] != _who(ctx, row):
                ctx.authorize(OVERRIDE, model.target(row))
            await tx.execute(_UNLOCK, server_id, ctx.now)
            await action_checks.record_action(ctx, tx, row, "unlock", "unlocked")
    return Response()


_UNLOCK = "UPDATE servers SET locked = FALSE, locked_reason = NULL, locked_by = NULL, updated_at = $2 WHERE id = $1"


def _who(ctx: Context, row: Row) -> str:
    return OWNER if ctx.token.project_id == row["project_id"] else ADMIN
