"""Deleting: at once, or so that it can be restored for a while."""

from __future__ import annotations

from typing import Any

import orjson

from kilonova.compute.api import api
from kilonova.compute.block_devices import model as block_devices
from kilonova.compute.operations import stopping
from kilonova.compute.operations.delete import WITH_VOLUMES, Delete
from kilonova.compute.operations.restore import Restore
from kilonova.compute.operations.soft_delete import SoftDelete
from kilonova.compute.quotas import model as quotas
from kilonova.compute.servers import acting, model, states
from kilonova.http import Answer, Context
from kilonova.http.pieces import ANYTHING
from kilonova.operations import begin, request_cancel
from kilonova.store import Reader, Row, Transaction

RULE = "os_compute_api:os-deferred-delete:"


async def delete(ctx: Context, tx: Transaction, row: Row) -> None:
    """As configured. What cannot be switched on again by its host alone is deleted at once."""
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
        params = {"rescued": row["vm_state"] == states.RESCUED, **stopping.params_of(row)}
        await acting.start(ctx, tx, row, SoftDelete, params)


@api.action("forceDelete", body=ANYTHING, checks=[RULE + "force"], status=202)
async def force_delete(ctx: Context, server_id: str) -> Answer:
    """Delete a server at once, whatever else is happening to it."""
    async with ctx.db.transaction() as tx:
        row = await model.find(ctx, tx, server_id, rule=RULE + "force", lock=True)
        acting.check_unlocked(ctx, row)
        await delete_now(ctx, tx, row)
    return Answer()


@api.action("restore", body=ANYTHING, checks=[RULE + "restore"], status=202)
async def restore(ctx: Context, server_id: str) -> Answer:
    """Have a deleted server back that is not reclaimed yet."""
    async with ctx.db.transaction() as tx:
        row = await acting.ready(ctx, tx, server_id, rule=RULE + "restore", transition="restore")
        each = {"instances": 1, "cores": row["vcpus"], "ram": row["ram"]}
        await quotas.fit(tx, row["project_id"], ctx.services.config, each, user_id=row["user_id"])
        await acting.start(ctx, tx, row, Restore, {"rescued": await _was_rescued(tx, server_id)})
    return Answer()


async def _was_rescued(reader: Reader, server_id: str) -> bool:
    sql = "SELECT params FROM operations WHERE server_id = $1 AND kind = $2 ORDER BY seq DESC LIMIT 1"
    params: dict[str, Any] = orjson.loads(await reader.fetch_value(sql, server_id, SoftDelete.kind) or "{}")
    return bool(params.get("rescued"))
