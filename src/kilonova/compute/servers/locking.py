"""Locks: who may not administer servers leaves a locked one alone, and somebody of its project unlocks it again."""

from __future__ import annotations

from kilonova.compute.api import api
from kilonova.compute.servers import acting, model
from kilonova.http import Answer, Context
from kilonova.http.pieces import ANYTHING, Schema, closed
from kilonova.store import Row

RULE = "os_compute_api:os-lock-server:"
OVERRIDE = RULE + "unlock:unlock_override"
OWNER, ADMIN = "owner", "admin"

LOCK: Schema = closed({"locked_reason": {"type": "string", "minLength": 1, "maxLength": 255}}, type=["object", "null"])


@api.action("lock", body=LOCK, checks=[RULE + "lock"], status=202)
async def lock(ctx: Context, server_id: str) -> Answer:
    """Keep a server from changes by anybody but administrators."""
    reason = (ctx.body["lock"] or {}).get("locked_reason")
    async with ctx.db.transaction() as tx:
        row = await model.find(ctx, tx, server_id, rule=RULE + "lock", lock=True)
        who = _who(ctx, row)
        # A lock of somebody else stays theirs.
        if not row["locked"] or who == ADMIN:
            sql = "UPDATE servers SET locked = TRUE, locked_reason = $2, locked_by = $3, updated_at = $4 WHERE id = $1"
            await tx.execute(sql, server_id, reason, who, ctx.now)
            await acting.note(ctx, tx, row, "lock", f"locked by {who}")
    return Answer()


@api.action("unlock", body=ANYTHING, checks=[RULE + "unlock", OVERRIDE], status=202)
async def unlock(ctx: Context, server_id: str) -> Answer:
    """Allow changes of a server again. Who locked it, or an administrator, may."""
    async with ctx.db.transaction() as tx:
        row = await model.find(ctx, tx, server_id, rule=RULE + "unlock", lock=True)
        if row["locked"]:
            if row["locked_by"] != _who(ctx, row):
                ctx.authorize(OVERRIDE, model.target(row))
            await tx.execute(_UNLOCK, server_id, ctx.now)
            await acting.note(ctx, tx, row, "unlock", "unlocked")
    return Answer()


_UNLOCK = "UPDATE servers SET locked = FALSE, locked_reason = NULL, locked_by = NULL, updated_at = $2 WHERE id = $1"


def _who(ctx: Context, row: Row) -> str:
    return OWNER if ctx.token.project_id == row["project_id"] else ADMIN
