"""Actions on a running live migration: abort and force complete."""

from __future__ import annotations

from kilonova.compute.api import api
from kilonova.compute.migrations import status
from kilonova.compute.migrations.model import LIVE
from kilonova.compute.migrations.status import ShownMigration
from kilonova.compute.operations.live_migrate import LiveMigrate, force_key
from kilonova.compute.servers import action_checks
from kilonova.http import Context, Response
from kilonova.http.errors import BadRequest, Conflict, NotFound
from kilonova.operations import post_event, request_cancel
from kilonova.operations import views as operations
from kilonova.store import Transaction

RULE = "os_compute_api:servers:migrations:"
PATH = "/servers/{server_id}/migrations/{migration_id}"
ABORT_QUEUED = api.behaviour("a live migration can be aborted before it runs")

RUNNING, BEFORE = "running", frozenset({"queued", "preparing"})


@api.route("DELETE", PATH, checks=[RULE + "delete"], status=202)
async def abort(ctx: Context, server_id: str, migration_id: str) -> Response:
    """Abort a live migration."""
    async with ctx.db.transaction() as tx:
        move, _ = await _find_running(ctx, tx, server_id, migration_id, "delete")
        now = status.status(move)
        if now != RUNNING and not (now in BEFORE and ctx.has_behaviour(ABORT_QUEUED)):
            raise _wrong_state(move, now, "abort")
        await request_cancel(tx, move.migration.operation_id)
    return Response()


@api.action("force_complete", at=PATH + "/action", checks=[RULE + "force_complete"], status=202)
async def force_complete(ctx: Context, server_id: str, migration_id: str) -> Response:
    """Force a live migration to complete, which pauses the guest."""
    async with ctx.db.transaction() as tx:
        move, cancelled = await _find_running(ctx, tx, server_id, migration_id, "force_complete")
        now = "being aborted" if cancelled else status.status(move)
        if now != RUNNING:
            raise _wrong_state(move, now, "force complete")
        await post_event(tx, force_key(move.migration.operation_id))
    return Response()


async def _find_running(
    ctx: Context, tx: Transaction, server_id: str, migration_id: str, verb: str
) -> tuple[ShownMigration, bool]:
    """The migration of a server that is being live-migrated, and whether it is cancelled.

    Errors are checked in this order: 404, 403, 409, 404.
    """
    server = await action_checks.find_unlocked(ctx, tx, server_id, rule=RULE + verb)
    running = (await operations.find_running(tx, [server_id])).get(server_id)
    if running is None or running.kind != LiveMigrate.kind:
        state = f"task_state {running.task_state}" if running else f"vm_state {server.vm_state}"
        raise Conflict(f"Cannot '{verb}' a live migration of instance {server_id} while it is in {state}")
    rows = await tx.fetch(f"{status.SELECT} WHERE m.server_id = $1 AND m.type = $2", server_id, LIVE)
    row = next((row for row in rows if str(row["id"]) == migration_id), None)
    if row is None:
        raise NotFound(f"Migration {migration_id[:80]} for server {server_id} could not be found.")
    return status.decode(row), running.cancelled and running.id == row["operation_id"]


def _wrong_state(move: ShownMigration, now: str, verb: str) -> BadRequest:
    migration = move.migration
    return BadRequest(f"Cannot {verb} migration {migration.id} of instance {migration.server_id} while it is {now}.")
