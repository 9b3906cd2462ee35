"""Live migration: a running server is to go to another host."""

from __future__ import annotations

from typing import Any

from kilonova.compute import dry_run
from kilonova.compute.api import api
from kilonova.compute.migrations import model as moves
from kilonova.compute.operations.live_migrate import LiveMigrate
from kilonova.compute.servers import acting, model
from kilonova.compute.servers.schemas import HOST
from kilonova.http import Answer, Context
from kilonova.http.errors import BadRequest
from kilonova.http.pieces import BOOLEAN, Schema, closed, is_true
from kilonova.store import Row, Transaction

RULE = "os_compute_api:os-migrate-server:migrate_live"
TO_HOST = RULE + ":host"
CHECKED_LATER = "a live migration is checked after it was accepted"

MIGRATE_LIVE: Schema = closed(
    {
        "host": {**HOST, "type": ["string", "null"]},
        "block_migration": {**BOOLEAN, "enum": [*BOOLEAN["enum"], "auto"]},
    },
    ["host", "block_migration"],
)


@api.action("os-migrateLive", body=MIGRATE_LIVE, checks=[RULE, TO_HOST], status=202, dry_run=True)
async def migrate_live(ctx: Context, server_id: str) -> Answer:
    """Move a running server to another host."""
    params = _params(ctx.body["os-migrateLive"])
    if dry_run.asked(ctx) or not ctx.behaves(CHECKED_LATER):
        async with ctx.db.transaction() as tx:
            row = await _ready(ctx, tx, server_id, params["host"])
        if dry_run.asked(ctx):
            return await dry_run.answer_move(ctx, row, params)
        await _check_beforehand(ctx, row, params)
    async with ctx.db.transaction() as tx:
        row = await _ready(ctx, tx, server_id, params["host"])
        await acting.start_move(ctx, tx, row, LiveMigrate, moves.LIVE, params)
    return Answer()


def _params(asked: dict[str, Any]) -> dict[str, Any]:
    block = asked["block_migration"]
    return moves.params_of(
        host=asked["host"],
        unverified=asked.get("unverified", False),
        block=None if block == "auto" else is_true(block),
    )


async def _ready(ctx: Context, tx: Transaction, server_id: str, host: str | None) -> Row:
    if host is not None:
        await model.find(ctx, tx, server_id, rule=TO_HOST)
    row = await acting.ready(ctx, tx, server_id, rule=RULE, transition="os-migrateLive")
    await acting.check_destination(tx, row, host)
    return row


async def _check_beforehand(ctx: Context, row: Row, params: dict[str, Any]) -> None:
    """Old versions are told at once that no host would do. What hosts themselves say is known only later."""
    plan = await dry_run.plan_move(ctx, row, params)
    if not plan.candidates:
        raise BadRequest(plan.diagnosis.sentence())
