"""Live-migrate a server."""

from __future__ import annotations

from kilonova.compute import dry_run
from kilonova.compute.api import api
from kilonova.compute.migrations import model as moves
from kilonova.compute.operations.live_migrate import LiveMigrate, LiveMigrateParams
from kilonova.compute.servers import action_checks, model
from kilonova.compute.servers.schemas import HOST
from kilonova.compute.servers.server import Server
from kilonova.http import Context, Response
from kilonova.http.errors import BadRequest
from kilonova.http.parameter_types import BOOLEAN, Schema, closed_object, is_true
from kilonova.store import Transaction

RULE = "os_compute_api:os-migrate-server:migrate_live"
TO_HOST = RULE + ":host"
CHECKED_LATER = api.behaviour("a live migration is checked after it was accepted")

MIGRATE_LIVE: Schema = closed_object(
    {
        "host": {**HOST, "type": ["string", "null"]},
        "block_migration": {**BOOLEAN, "enum": [*BOOLEAN["enum"], "auto"]},
    },
    ["host", "block_migration"],
)


@api.action("os-migrateLive", body=MIGRATE_LIVE, checks=[RULE, TO_HOST], status=202, dry_run=True)
async def migrate_live(ctx: Context, server_id: str) -> Response:
    """Move a running server to another host."""
    requested = ctx.body["os-migrateLive"]
    block = requested["block_migration"]
    params = LiveMigrateParams(
        host=requested["host"],
        unverified=requested.get("unverified", False),
        block=None if block == "auto" else is_true(block),
    )
    if dry_run.is_requested(ctx) or not ctx.has_behaviour(CHECKED_LATER):
        async with ctx.db.transaction() as tx:
            server = await _ready(ctx, tx, server_id, params.host)
        if dry_run.is_requested(ctx):
            return await dry_run.move_plan_response(ctx, server, params)
        await _check_beforehand(ctx, server, params)
    async with ctx.db.transaction() as tx:
        server = await _ready(ctx, tx, server_id, params.host)
        await action_checks.begin_move_operation(ctx, tx, server, LiveMigrate, moves.LIVE, params)
    return Response()


async def _ready(ctx: Context, tx: Transaction, server_id: str, host: str | None) -> Server:
    if host is not None:
        await model.find(ctx, tx, server_id, rule=TO_HOST)
    server = await action_checks.find_ready(ctx, tx, server_id, rule=RULE, transition="os-migrateLive")
    await action_checks.check_destination(tx, server, host)
    return server


async def _check_beforehand(ctx: Context, server: Server, params: LiveMigrateParams) -> None:
    """Before 2.34 a request without a valid host fails at once. Hosts' own checks come later in any case."""
    plan = await dry_run.plan_move(ctx, server, params)
    if not plan.candidates:
        raise BadRequest(plan.diagnosis.sentence())
