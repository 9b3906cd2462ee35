"""Delete a server at once, or softly: a soft-deleted server can be restored until it is reclaimed."""

from __future__ import annotations

from typing import Any

import orjson

from kilonova.compute.api import api
from kilonova.compute.block_devices import model as block_devices
from kilonova.compute.operations.delete import WITH_VOLUMES, Delete
from kilonova.compute.operations.restore import Restore
from kilonova.compute.operations.soft_delete import SoftDelete
from kilonova.compute.operations.steps import power
from kilonova.compute.quotas import model as quotas
from kilonova.compute.servers import action_checks, model, states
from kilonova.http import Context, Response
from kilonova.http.parameter_types import ANYTHING
from kilonova.operations import begin, request_cancel
from kilonova.store import Reader, Row, Transaction

DELETE = "os_compute_api:servers:delete"
RULE = "os_compute_api:os-deferred-delete:"


@api.route("DELETE", "/servers/{server_id}", checks=[DELETE], status=204)
async def delete(ctx: Context, server_id: str) -> Response:
    """Delete a server, even one with an unfinished operation; softly, if reclaim is configured."""
    async with ctx.db.transaction() as tx:
        row = await action_checks.find_unlocked(ctx, tx, server_id, rule=DELETE)
        await _delete_as_configured(ctx, tx, row)
    return Response()


async def _delete_as_configured(ctx: Context, tx: Transaction, row: Row) -> None:
    """Soft delete needs a guest that its host alone can start again; any other server is deleted at once."""
    if ctx.services.config.compute.reclaim_seconds <= 0:
        await delete_now(ctx, tx, row)
    elif row["vm_state"] != states.SOFT_DELETED:
        kept = row["vm_state"] in states.TRANSITIONS["soft delete"].allowed and row["launched_at"] and row["host"]
        await (_delete_softly if kept else delete_now)(ctx, tx, row)


async def delete_now(ctx: Context, tx: Transaction, row: Row) -> None:
    unfinished = await model.unfinished(tx, row["id"])
    if all(operation["kind"] != Delete.kind for operation in unfinished):
        for operation in unfinished:
            await request_cancel(tx, operation["id"])
        await begin_delete(tx, row, ctx.token.user_id, ctx.request_id)


async def begin_delete(tx: Transaction, row: Row, user_id: str | None, request_id: str | None) -> str:
    without = frozenset() if await block_devices.has_volumes(tx, row["id"]) else WITH_VOLUMES
    return await begin(
        tx,
        Delete,
        server_id=row["id"],
        project_id=row["project_id"],
        user_id=user_id,
        request_id=request_id,
        host=row["host"],
        without=without,
    )


async def _delete_softly(ctx: Context, tx: Transaction, row: Row) -> None:
    unfinished = await model.unfinished(tx, row["id"])
    if all(operation["kind"] not in (Delete.kind, SoftDelete.kind) for operation in unfinished):
        for operation in unfinished:
            await request_cancel(tx, operation["id"])
        params = {"rescued": row["vm_state"] == states.RESCUED, **power.shutdown_params(row)}
        await action_checks.begin_operation(ctx, tx, row, SoftDelete, params)


@api.action("forceDelete", body=ANYTHING, checks=[RULE + "force"], status=202)
async def force_delete(ctx: Context, server_id: str) -> Response:
    """Delete a server at once, even one with an unfinished operation."""
    async with ctx.db.transaction() as tx:
        row = await action_checks.find_unlocked(ctx, tx, server_id, rule=RULE + "force")
        await delete_now(ctx, tx, row)
    return Response()


@api.action("restore", body=ANYTHING, checks=[RULE + "restore"], status=202)
async def restore(ctx: Context, server_id: str) -> Response:
    """Restore a soft-deleted server."""
    async with ctx.db.transaction() as tx:
        row = await action_checks.find_ready(ctx, tx, server_id, rule=RULE + "restore", transition="restore")
        each = {"instances": 1, "cores": row["vcpus"], "ram": row["ram"]}
        await quotas.count_within_quota(tx, row["project_id"], ctx.services.config, each, user_id=row["user_id"])
        await action_checks.begin_operation(ctx, tx, row, Restore, {"rescued": await _was_rescued(tx, server_id)})
    return Response()


async def _was_rescued(reader: Reader, server_id: str) -> bool:
    sql = "SELECT params FROM operations WHERE server_id = $1 AND kind = $2 ORDER BY seq DESC LIMIT 1"
    params: dict[str, Any] = orjson.loads(await reader.fetch_value(sql, server_id, SoftDelete.kind) or "{}")
    return bool(params.get("rescued"))
