"""Cold-migrate a server to another host."""

from __future__ import annotations

from kilonova.compute import dry_run
from kilonova.compute.api import api
from kilonova.compute.migrations import model as moves
from kilonova.compute.operations.resize import Migrate, MigrateParams
from kilonova.compute.operations.steps import power
from kilonova.compute.servers import action_checks, model
from kilonova.compute.servers.schemas import HOST
from kilonova.http import Context, Response
from kilonova.http.parameter_types import Schema, closed_object

RULE = "os_compute_api:os-migrate-server:migrate"
TO_HOST = RULE + ":host"

MIGRATE: Schema = closed_object({"host": {**HOST, "type": ["string", "null"]}}, type=["object", "null"])


@api.action("migrate", body=MIGRATE, checks=[RULE, TO_HOST], status=202, dry_run=True)
async def migrate(ctx: Context, server_id: str) -> Response:
    """Migrate a server to another host, stopped during the move."""
    host = (ctx.body["migrate"] or {}).get("host")
    async with ctx.db.transaction() as tx:
        if host is not None:
            await model.find(ctx, tx, server_id, rule=TO_HOST)
        server = await action_checks.find_ready(ctx, tx, server_id, rule=RULE, transition="migrate")
        params = MigrateParams(host=host, grace=power.shutdown_grace(server))
        await action_checks.check_destination(tx, server, host)
        if not dry_run.is_requested(ctx):
            await action_checks.begin_move_operation(ctx, tx, server, Migrate, moves.MIGRATION, params)
            return Response()
    return await dry_run.move_plan_response(ctx, server, params)
