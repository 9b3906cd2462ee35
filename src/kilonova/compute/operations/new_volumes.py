"""Volumes that are made for a new server of an image, a snapshot or nothing, and those that it was given.

A device knows its own id before its volume is asked for, and the volume carries it in its metadata: so whoever comes
after a worker that died finds what that one made, and none is made twice.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from kilonova.compute.block_devices import model as devices
from kilonova.compute.operations import volumes
from kilonova.compute.operations.common import fence
from kilonova.compute.volumes import reasons
from kilonova.identity.client import Auth, IdentityError
from kilonova.operations import Failed, Operation
from kilonova.store import Row
from kilonova.volume.client import VolumeError

logger = logging.getLogger(__name__)

DEVICE, DOWNLOADING = "block_device_uuid", "downloading"
# Small volumes are made in no time, for which it is not worth to let the operation rest.
PATIENCE, GLANCE = 0.2, 0.01
_SOURCES = {"image": "imageRef", "snapshot": "snapshot_id"}


async def make(op: Operation) -> dict[str, int] | None:
    """Reserve what was given, and have the rest made. What is to be waited for, in GiB."""
    wanted = await _wanted(op)
    if not wanted:
        return None
    for device in wanted:
        if not _is_made(device):
            await volumes.reserve(op, device)
        elif device["volume_id"] is None:
            await _make(op, device)
    await _wait_a_little(op)
    return {"gigabytes": sum(device["volume_size"] or 0 for device in wanted if _is_made(device))}


async def ready(op: Operation) -> bool | None:
    """Reserve those that are made by now. True if that is all of them, else None."""
    done = True
    for device in await _wanted(op):
        if device["attachment_id"] is not None:
            continue
        if await _is_available(op, device["volume_id"]):
            await volumes.reserve(op, device)
        else:
            done = False
    return True if done else None


async def unmake(op: Operation) -> None:
    """Give back what was given, and delete what was made."""
    wanted = await _wanted(op)
    await volumes.release(op, [device for device in wanted if device["volume_id"] is not None])
    for device in wanted:
        if _is_made(device):
            await _delete_made(op, device)
        async with op.db.transaction() as tx:
            if _is_made(device):
                await devices.set_volume(tx, device["uuid"], None)
            await devices.set_attachment(tx, device["uuid"], None)
            await fence(op, tx)


async def delete(op: Operation) -> None:
    """Those that go with the server. One that cannot be deleted is none of the server's any more, and stays."""
    for device in await devices.volumes_of(op.db, str(op.server_id)):
        if device["delete_on_termination"]:
            try:
                await _delete(op, device["volume_id"])
            except VolumeError as error:
                logger.warning("volume %s of server %s stays: %s", device["volume_id"], op.server_id, error)


async def _delete(op: Operation, volume_id: str) -> None:
    """Also one that is about to get other content, for a server that does not wait for it any more."""
    auth = await op.services.identity.auth()
    try:
        await op.services.volume.delete(volume_id, auth)
    except VolumeError:
        found = await op.services.volume.show(volume_id, auth)
        if found is None or found["status"] != DOWNLOADING:
            raise
        await op.services.volume.force_delete(volume_id, auth)


async def _wanted(op: Operation) -> list[Row]:
    return [device for device in await devices.of_server(op.db, str(op.server_id)) if devices.is_volume(device)]


def _is_made(device: Row) -> bool:
    return bool(device["source_type"] != "volume")


async def _make(op: Operation, device: Row) -> None:
    async with volumes.explained():
        found = await _made(op, device)
        volume = found[0] if found else await op.services.volume.create(_request(device), await _owner(op))
    async with op.db.transaction() as tx:
        await devices.set_volume(tx, device["uuid"], volume["id"])
        await fence(op, tx)


async def _owner(op: Operation) -> Auth:
    """The service in the server's project, whose volumes they are."""
    try:
        auth: Auth = await op.services.identity.auth(op.project_id)
    except IdentityError as error:
        raise Failed("Volumes cannot be made for servers of this project.", fault=str(error)) from error
    return auth


def _request(device: Row) -> dict[str, Any]:
    request: dict[str, Any] = {"size": device["volume_size"], "name": "", "metadata": {DEVICE: device["uuid"]}}
    if device["source_type"] in _SOURCES:
        request[_SOURCES[device["source_type"]]] = device["source_id"]
    if device["volume_type"]:
        request["volume_type"] = device["volume_type"]
    return request


async def _made(op: Operation, device: Row) -> list[dict[str, Any]]:
    """What an earlier run has made for the device, unless it is about to go.

    A service that does not know the filter gives others as well.
    """
    told = f'{{"{DEVICE}": "{device["uuid"]}"}}'
    auth = await op.services.identity.auth()
    found = await op.services.volume.volumes(auth, {"all_tenants": "1", "metadata": told})
    own = [volume for volume in found if volume["metadata"].get(DEVICE) == device["uuid"]]
    return [volume for volume in own if volume["status"] != "deleting"]


async def _wait_a_little(op: Operation) -> None:
    until = asyncio.get_running_loop().time() + PATIENCE
    while await ready(op) is None and asyncio.get_running_loop().time() < until:
        await asyncio.sleep(GLANCE)


async def _is_available(op: Operation, volume_id: str) -> bool:
    auth = await op.services.identity.auth()
    async with volumes.explained():
        volume = await op.services.volume.show(volume_id, auth)
    if volume is None or volume["status"].startswith("error"):
        status = "gone" if volume is None else volume["status"]
        message = f"Volume {volume_id} did not finish being created: its status is {status}."
        raise await reasons.failure(op, volume_id, message)
    return bool(volume["status"] in ("available", "reserved"))


async def _delete_made(op: Operation, device: Row) -> None:
    """Also one that is still being made: nobody waits for it any more."""
    auth = await op.services.identity.auth()
    async with volumes.explained():
        for volume in await _made(op, device):
            try:
                await op.services.volume.delete(volume["id"], auth)
            except VolumeError as error:
                if error.status != 400:
                    raise
                await op.services.volume.force_delete(volume["id"], auth)
