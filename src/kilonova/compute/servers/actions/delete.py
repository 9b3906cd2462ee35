"""Delete a server at once, or softly: a soft-deleted server can be restored until it is reclaimed."""

from __future__ import annotations

from msgspec import json

from kilonova.compute.api import api
from kilonova.compute.block_devices import model as block_devices
from kilonova.compute.operations.delete import WITH_SHARES, WITH_VOLUMES, Delete
from kilonova.compute.operations.restore import Restore, RestoreParams
from kilonova.compute.operations.soft_delete import SoftDelete, SoftDeleteParams
from kilonova.compute.operations.steps import power
from kilonova.compute.quotas import model as quotas
from kilonova.compute.quotas.source import find_source_of_server
from kilonova.compute.server_shares import model as server_shares
from kilonova.compute.servers import action_checks, model, states
from kilonova.compute.servers.server import Server
from kilonova.http import Context, Response
from kilonova.http.parameter_types import ANYTHING
from kilonova.operations import begin, request_cancel
from kilonova.store import Reader, Transaction

DELETE = "os_compute_api:servers:delete"
RULE = "os_compute_api:os-deferred-delete:"


@api.route("DELETE", "/servers/{server_id}", checks=[DELETE], status=204)
async def delete(ctx: Context, server_id: str) -> Response:
    """Delete a server, even one with an unfinished operation; softly, if reclaim is configured."""
    async with ctx.db.transaction() as tx:
        server = await action_checks.find_unlocked(ctx, tx, server_id, rule=DELETE)
        await _delete_as_configured(ctx, tx, server)
    return Response()


async def _delete_as_configured(ctx: Context, tx: Transaction, server: Server) -> None:
    """Soft delete needs a guest that its host alone can start again; any other server is deleted at once."""
    if ctx.services.config.compute.reclaim_seconds <= 0:
        await delete_now(ctx, tx, server)
    elif server.vm_state != states.SOFT_DELETED:
        soft = states.TRANSITIONS["soft delete"]
        kept = soft.allows(server.vm_state, shelved=server.is_shelved) and server.launched_at and server.host
        await (_delete_softly if kept else delete_now)(ctx, tx, server)


async def delete_now(ctx: Context, tx: Transaction, server: Server) -> None:
    unfinished = await model.unfinished(tx, server.id)
    if all(operation.kind != Delete.kind for operation in unfinished):
        for operation in unfinished:
            await request_cancel(tx, operation.id)
        await begin_delete(tx, server, ctx.token.user_id, ctx.request_id)


async def begin_delete(tx: Transaction, server: Server, user_id: str | None, request_id: str | None) -> str:
    without = frozenset() if await block_devices.has_volumes(tx, server.id) else WITH_VOLUMES
    if not await server_shares.has_shares(tx, server.id):
        without |= WITH_SHARES
    return await begin(
        tx,
        Delete,
        server_id=server.id,
        project_id=server.project_id,
        user_id=user_id,
        request_id=request_id,
        host=server.host,
        without=without,
    )


async def _delete_softly(ctx: Context, tx: Transaction, server: Server) -> None:
    unfinished = await model.unfinished(tx, server.id)
    if all(operation.kind not in (Delete.kind, SoftDelete.kind) for operation in unfinished):
        for operation in unfinished:
            await request_cancel(tx, operation.id)
        params = SoftDeleteParams(rescued=server.vm_state == states.RESCUED, grace=power.shutdown_grace(server))
        await action_checks.begin_operation(ctx, tx, server, SoftDelete, params)


@api.action("forceDelete", body=ANYTHING, checks=[RULE + "force"], status=202)
async def force_delete(ctx: Context, server_id: str) -> Response:
    """Delete a server at once, even one with an unfinished operation."""
    async with ctx.db.transaction() as tx:
        server = await action_checks.find_unlocked(ctx, tx, server_id, rule=RULE + "force")
        await delete_now(ctx, tx, server)
    return Response()


@api.action("restore", body=ANYTHING, checks=[RULE + "restore"], status=202)
async def restore(ctx: Context, server_id: str) -> Response:
    """Restore a soft-deleted server."""
    source = await find_source_of_server(ctx, server_id)
    async with ctx.db.transaction() as tx:
        server = await action_checks.find_ready(ctx, tx, server_id, rule=RULE + "restore", transition="restore")
        each = source.needed(server.flavor, server.image_properties, root_disk=not server.is_volume_backed)
        await quotas.count_within_quota(tx, server.project_id, source, each, user_id=server.user_id)
        await action_checks.begin_operation(ctx, tx, server, Restore, RestoreParams(await _was_rescued(tx, server_id)))
    return Response()


async def _was_rescued(reader: Reader, server_id: str) -> bool:
    sql = "SELECT params FROM operations WHERE server_id = $1 AND kind = $2 ORDER BY seq DESC LIMIT 1"
    text = await reader.fetch_value(sql, server_id, SoftDelete.kind)
    return text is not None and json.decode(text, type=SoftDeleteParams).rescued
