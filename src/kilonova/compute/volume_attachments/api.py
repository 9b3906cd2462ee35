"""Routes of the volume attachments of a server."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from kilonova.compute.api import api
from kilonova.compute.block_devices import model as devices
from kilonova.compute.block_devices.model import BlockDevice
from kilonova.compute.operations.attach_volume import AttachVolume
from kilonova.compute.operations.detach_volume import BEGIN, DetachVolume
from kilonova.compute.operations.steps.volumes import DeviceParams
from kilonova.compute.servers import action_checks, model, states
from kilonova.compute.servers.server import Server
from kilonova.compute.volume_attachments import checks, schemas, swap, views
from kilonova.compute.volume_checks import check_not_encrypted, check_zone
from kilonova.compute.volume_messages import failure_reason
from kilonova.http import Context, Response
from kilonova.http.errors import BadRequest, Conflict, Forbidden, NotFound
from kilonova.http.pagination import page_limit
from kilonova.http.parameter_types import is_true
from kilonova.ids import new_id
from kilonova.operations.views import is_past
from kilonova.store import Reader, Transaction
from kilonova.volume.client import Volume

__all__ = ["views"]

RULE = "os_compute_api:os-volumes-attachments:"
ATTACHMENTS = "/servers/{server_id}/os-volume_attachments"
ATTACHMENT = ATTACHMENTS + "/{volume_id}"
WITHOUT_BODY = api.behaviour("attaching a volume is not waited for")
SHELVED = api.behaviour("volumes of shelved servers change")
UPDATES = api.behaviour("the attachment of a volume changes")
# How long a response waits for the detach to begin, and how often it checks.
_BEGIN_TIMEOUT_SECONDS, _POLL_SECONDS = 1.0, 0.005
# Keys that an update may contain but not change, and their columns.
IMMUTABLE = {"id": "volume_id", "serverId": "server_id", "device": "device_name", "tag": "tag"}


@api.route(
    "GET",
    ATTACHMENTS,
    checks=[RULE + "index"],
    query=schemas.LIST,
    shows=("volumeAttachments", "volume attachment", True),
)
async def index(ctx: Context, server_id: str) -> Response:
    """List the volumes of a server."""
    await model.find(ctx, ctx.db, server_id, rule=RULE + "index")
    start = int(ctx.query_one("offset") or 0)
    found = (await devices.volumes_of(ctx.db, server_id))[start : start + page_limit(ctx)]
    return Response({"volumeAttachments": await ctx.render_all("volume attachment", found)})


@api.route("GET", ATTACHMENT, checks=[RULE + "show"], query={}, shows=("volumeAttachment", "volume attachment", False))
async def show(ctx: Context, server_id: str, volume_id: str) -> Response:
    """Show a volume of a server."""
    await model.find(ctx, ctx.db, server_id, rule=RULE + "show")
    device = await _device(ctx.db, server_id, volume_id)
    return Response({"volumeAttachment": ctx.render("volume attachment", device)})


@api.route("POST", ATTACHMENTS, checks=[RULE + "create"], body=schemas.CREATE, query={}, status=202)
async def create(ctx: Context, server_id: str) -> Response:
    """Attach a volume to a server."""
    requested = ctx.body["volumeAttachment"]
    async with ctx.db.transaction() as tx:
        await _lock_ready_server(ctx, tx, server_id, "create", "attach_volume")
    auth = checks.caller_auth(ctx)
    volume = await ctx.services.volume.show(requested["volumeId"], auth)
    if volume is None:
        raise NotFound(checks.not_found_message(requested["volumeId"]))
    reason = await failure_reason(ctx.services, volume, auth)
    async with ctx.db.transaction() as tx:
        server = await _lock_ready_server(ctx, tx, server_id, "create", "attach_volume")
        await _check_attachable(ctx, tx, server, volume, requested.get("tag"), reason)
        device = await _new_device(ctx, tx, server, volume, requested)
        await devices.insert(tx, [device])
        await action_checks.begin_operation(ctx, tx, server, AttachVolume, DeviceParams(device.uuid))
    if ctx.has_behaviour(WITHOUT_BODY):
        return Response()
    return Response({"volumeAttachment": ctx.render("new volume attachment", device)})


@api.route("PUT", ATTACHMENT, checks=[RULE + "update", RULE + "swap"], body=schemas.UPDATE, query={}, status=202)
async def update(ctx: Context, server_id: str, volume_id: str) -> Response:
    """Change how a volume is attached to a server, or swap it for another one."""
    requested = ctx.body["volumeAttachment"]
    if requested["volumeId"] != volume_id or not ctx.has_behaviour(UPDATES):
        return await swap.swap(ctx, server_id, volume_id, requested)
    async with ctx.db.transaction() as tx:
        await action_checks.find_unlocked(ctx, tx, server_id, rule=RULE + "update")
        device = await _device(tx, server_id, volume_id)
        _check_immutable(device, requested)
        if "delete_on_termination" in requested:
            await devices.set_delete_on_termination(tx, device.uuid, is_true(requested["delete_on_termination"]))
    return Response()


@api.route("DELETE", ATTACHMENT, checks=[RULE + "delete"], query={}, status=202)
async def delete(ctx: Context, server_id: str, volume_id: str) -> Response:
    """Detach a volume from a server."""
    async with ctx.db.transaction() as tx:
        await _lock_ready_server(ctx, tx, server_id, "delete", "detach_volume")
        await _device(tx, server_id, volume_id)
    volume = await ctx.services.volume.show(volume_id, checks.caller_auth(ctx))
    if volume is not None and volume.status == "detaching" and not volume.multiattach:
        raise checks.invalid(f"volume '{volume_id}' is being detached already.")
    async with ctx.db.transaction() as tx:
        server = await _lock_ready_server(ctx, tx, server_id, "delete", "detach_volume")
        device = await _device(tx, server_id, volume_id)
        if device.boot_index == 0:
            raise Forbidden("Cannot detach a root device volume")
        params = DeviceParams(device.uuid)
        operation_id = await action_checks.begin_operation(ctx, tx, server, DetachVolume, params)
    await _wait_until_detaching(ctx, operation_id)
    return Response()


async def _wait_until_detaching(ctx: Context, operation_id: str) -> None:
    """Wait until the volume is "detaching": clients poll its status next, and would take "in-use" for the end."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_BEGIN_TIMEOUT_SECONDS):
            while not await is_past(ctx.db, operation_id, BEGIN.name):
                await asyncio.sleep(_POLL_SECONDS)


async def _lock_ready_server(ctx: Context, tx: Transaction, server_id: str, rule: str, verb: str) -> Server:
    """The server, locked until `tx` ends. Unlike for other actions it may be shelved and offloaded."""
    server = await action_checks.find_unlocked(ctx, tx, server_id, rule=RULE + rule, transition=verb)
    if server.vm_state in (states.SHELVED, states.SHELVED_OFFLOADED) and not ctx.has_behaviour(SHELVED):
        raise Conflict(f"Cannot '{verb}' instance {server_id} while it is in vm_state {server.vm_state}")
    return server


async def _device(reader: Reader, server_id: str, volume_id: str) -> BlockDevice:
    device = await devices.of_volume(reader, server_id, volume_id)
    if device is None:
        raise NotFound(f"volume_id not found: {volume_id}")
    return device


async def _check_attachable(
    ctx: Context, tx: Transaction, server: Server, volume: Volume, tag: str | None, failure_reason: str
) -> None:
    if await devices.of_volume(tx, server.id, volume.id) is not None:
        raise checks.invalid(f"volume {volume.id} is already attached to instance {server.id}.")
    checks.check_available(ctx, volume, failure_reason)
    checks.check_server(server, volume, tag)
    check_not_encrypted(volume)
    await check_zone(ctx, tx, server, volume)
    await checks.check_not_attached_elsewhere(tx, server.id, volume.id, multiattach=volume.multiattach)


async def _new_device(
    ctx: Context, tx: Transaction, server: Server, volume: Volume, requested: dict[str, str]
) -> BlockDevice:
    return BlockDevice(
        uuid=new_id(),
        server_id=server.id,
        source_type=devices.VOLUME,
        destination_type=devices.VOLUME,
        source_id=volume.id,
        volume_id=volume.id,
        volume_size=volume.size,
        device_name=checks.device_name(server, await devices.of_server(tx, server.id), requested.get("device")),
        tag=requested.get("tag"),
        delete_on_termination=is_true(requested.get("delete_on_termination", False)),
        multiattach=volume.multiattach,
        created_at=ctx.now,
    )


def _check_immutable(device: BlockDevice, requested: dict[str, object]) -> None:
    for key, column in IMMUTABLE.items():
        if key in requested and requested[key] != getattr(device, column):
            raise BadRequest(f"The {key} of a volume attachment cannot be changed.")
