"""Routes of the volumes of a server."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from kilonova.compute.api import api
from kilonova.compute.block_devices import model as devices
from kilonova.compute.operations.attach_volume import AttachVolume
from kilonova.compute.operations.detach_volume import BEGIN, DetachVolume
from kilonova.compute.servers import acting, model, states
from kilonova.compute.volume_attachments import checks, schemas, swapping, views
from kilonova.http import Answer, Context
from kilonova.http.errors import BadRequest, Conflict, Forbidden, NotFound
from kilonova.http.pagination import limit_of
from kilonova.http.pieces import is_true
from kilonova.ids import new_id
from kilonova.operations.views import is_past
from kilonova.store import Reader, Row, Transaction

__all__ = ["views"]

RULE = "os_compute_api:os-volumes-attachments:"
ATTACHMENTS = "/servers/{server_id}/os-volume_attachments"
ATTACHMENT = ATTACHMENTS + "/{volume_id}"
WITHOUT_BODY = "attaching a volume is not waited for"
SHELVED = "volumes of shelved servers change"
UPDATES = "the attachment of a volume changes"
# For how long an answer waits at most.
_BEGIN_SECONDS, _LOOK_SECONDS = 1.0, 0.005
# What an update may name, and not change, with the columns.
FIXED = {"id": "volume_id", "serverId": "server_id", "device": "device_name", "tag": "tag"}


@api.route(
    "GET",
    ATTACHMENTS,
    checks=[RULE + "index"],
    query=schemas.LIST,
    shows=("volumeAttachments", "volume attachment", True),
)
async def index(ctx: Context, server_id: str) -> Answer:
    """List the volumes of a server."""
    await model.find(ctx, ctx.db, server_id, rule=RULE + "index")
    start = int(ctx.query_one("offset") or 0)
    found = (await devices.volumes_of(ctx.db, server_id))[start : start + limit_of(ctx)]
    return Answer({"volumeAttachments": [ctx.render("volume attachment", device) for device in found]})


@api.route(
    "GET",
    ATTACHMENT,
    checks=[RULE + "show"],
    query={},
    shows=("volumeAttachment", "volume attachment", False),
)
async def show(ctx: Context, server_id: str, volume_id: str) -> Answer:
    """Show a volume of a server."""
    await model.find(ctx, ctx.db, server_id, rule=RULE + "show")
    device = await _device(ctx.db, server_id, volume_id)
    return Answer({"volumeAttachment": ctx.render("volume attachment", device)})


@api.route("POST", ATTACHMENTS, checks=[RULE + "create"], body=schemas.CREATE, query={}, status=202)
async def create(ctx: Context, server_id: str) -> Answer:
    """Attach a volume to a server."""
    asked = ctx.body["volumeAttachment"]
    async with ctx.db.transaction() as tx:
        await _ready(ctx, tx, server_id, "create", "attach_volume")
    volume = await checks.look_up(ctx, asked["volumeId"])
    if volume is None:
        raise NotFound(checks.missing(asked["volumeId"]))
    async with ctx.db.transaction() as tx:
        row = await _ready(ctx, tx, server_id, "create", "attach_volume")
        device = await _new_device(ctx, tx, row, volume, asked)
        await devices.insert(tx, [device])
        await acting.start(ctx, tx, row, AttachVolume, {"device": device["uuid"]})
    if ctx.behaves(WITHOUT_BODY):
        return Answer()
    return Answer({"volumeAttachment": ctx.render("new volume attachment", device)})


@api.route("PUT", ATTACHMENT, checks=[RULE + "update", RULE + "swap"], body=schemas.UPDATE, query={}, status=202)
async def update(ctx: Context, server_id: str, volume_id: str) -> Answer:
    """Change how a volume is attached to a server, or swap it for another one."""
    asked = ctx.body["volumeAttachment"]
    if asked["volumeId"] != volume_id or not ctx.behaves(UPDATES):
        return await swapping.swap(ctx, server_id, volume_id, asked)
    async with ctx.db.transaction() as tx:
        row = await model.find(ctx, tx, server_id, rule=RULE + "update", lock=True)
        acting.check_unlocked(ctx, row)
        device = await _device(tx, server_id, volume_id)
        _check_fixed(device, asked)
        if "delete_on_termination" in asked:
            await devices.set_termination(tx, device["uuid"], is_true(asked["delete_on_termination"]))
    return Answer()


@api.route("DELETE", ATTACHMENT, checks=[RULE + "delete"], query={}, status=202)
async def delete(ctx: Context, server_id: str, volume_id: str) -> Answer:
    """Detach a volume from a server."""
    async with ctx.db.transaction() as tx:
        await _ready(ctx, tx, server_id, "delete", "detach_volume")
        await _device(tx, server_id, volume_id)
    volume = await checks.look_up(ctx, volume_id)
    if volume is not None and volume["status"] == "detaching" and not volume["multiattach"]:
        raise checks.invalid(f"volume '{volume_id}' is being detached already.")
    async with ctx.db.transaction() as tx:
        row = await _ready(ctx, tx, server_id, "delete", "detach_volume")
        device = await _device(tx, server_id, volume_id)
        if device["boot_index"] == 0:
            raise Forbidden("Cannot detach a root device volume")
        operation_id = await acting.start(ctx, tx, row, DetachVolume, {"device": device["uuid"]})
    await _until_begun(ctx, operation_id)
    return Answer()


async def _until_begun(ctx: Context, operation_id: str) -> None:
    """Whoever has the answer looks at the volume's status next, and takes "in-use" for the end of it."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_BEGIN_SECONDS):
            while not await is_past(ctx.db, operation_id, BEGIN):
                await asyncio.sleep(_LOOK_SECONDS)


async def _ready(ctx: Context, tx: Transaction, server_id: str, rule: str, verb: str) -> Row:
    """The server, locked until `tx` ends. Unlike for other acts, one that has left its host will do."""
    row = await model.find(ctx, tx, server_id, rule=RULE + rule, lock=True)
    acting.check_unlocked(ctx, row)
    await acting.check_state(tx, row, states.TRANSITIONS[verb])
    if row["vm_state"] in (states.SHELVED, states.SHELVED_OFFLOADED) and not ctx.behaves(SHELVED):
        raise Conflict(f"Cannot '{verb}' instance {server_id} while it is in vm_state {row['vm_state']}")
    return row


async def _device(reader: Reader, server_id: str, volume_id: str) -> Row:
    device = await devices.of_volume(reader, server_id, volume_id)
    if device is None:
        raise NotFound(f"volume_id not found: {volume_id}")
    return device


async def _new_device(ctx: Context, tx: Transaction, row: Row, volume: dict[str, Any], asked: dict[str, Any]) -> Row:
    found = await devices.of_server(tx, row["id"])
    if any(device["volume_id"] == volume["id"] for device in found):
        raise checks.invalid(f"volume {volume['id']} is already attached to instance {row['id']}.")
    checks.check_free(ctx, volume)
    checks.check_server(row, volume, asked.get("tag"))
    await checks.check_nobody_else(tx, row["id"], volume)
    return {
        "uuid": new_id(),
        "server_id": row["id"],
        "source_type": devices.VOLUME,
        "destination_type": devices.VOLUME,
        "source_id": volume["id"],
        "volume_id": volume["id"],
        "volume_size": volume["size"],
        "device_name": checks.device_name(row, found, asked.get("device")),
        "tag": asked.get("tag"),
        "delete_on_termination": is_true(asked.get("delete_on_termination", False)),
        "multiattach": volume["multiattach"],
        "created_at": ctx.now,
    }


def _check_fixed(device: Row, asked: dict[str, Any]) -> None:
    for key, column in FIXED.items():
        if key in asked and asked[key] != device[column]:
            raise BadRequest(f"The {key} of a volume attachment cannot be changed.")
