"""Steps for the volumes of a new server: create them from an image, a snapshot or blank, or reserve existing ones.

A created volume carries the id of its block device in its metadata. So a step that runs again finds the volume of the
earlier run and does not create a second one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from msgspec import Struct

from kilonova.compute import volume_messages
from kilonova.compute.block_devices import model as devices
from kilonova.compute.block_devices.model import BlockDevice
from kilonova.compute.operations.steps import images, volumes
from kilonova.compute.operations.steps.server import fence, server_of
from kilonova.compute.servers import model
from kilonova.compute.volume_checks import encryption_error
from kilonova.identity.client import Auth, IdentityError
from kilonova.operations import Failed, Operation, StepResult
from kilonova.volume.client import Volume, VolumeError

logger = logging.getLogger(__name__)

DEVICE, DOWNLOADING = "block_device_uuid", "downloading"
# Small volumes are ready at once, so the operation waits for them before it yields its slot.
FIRST_WAIT_SECONDS, POLL_SECONDS = 0.2, 0.01
_SOURCES = {"image": "imageRef", "snapshot": "snapshot_id"}


class CreatedVolumes(Struct, frozen=True):
    """`gigabytes` is the sum of the sizes."""

    gigabytes: int


MAKE_VOLUMES = StepResult("make volumes", CreatedVolumes)


async def create(op: Operation, image_hashes: Mapping[str, str] = {}) -> CreatedVolumes | None:
    """Reserve existing volumes and create the others. Returns the size of the created ones.

    Raises Failed if an image in `image_hashes` was replaced.
    """
    requested = await _requested(op)
    if not requested:
        return None
    for device in requested:
        if not _is_created(device):
            await volumes.reserve(op, device)
        elif device.volume_id is None:
            await _create(op, device, image_hashes.get(device.source_id or ""))
    await _wait_briefly(op)
    return CreatedVolumes(sum(device.volume_size or 0 for device in requested if _is_created(device)))


async def are_ready(op: Operation) -> bool | None:
    """Reserve created volumes that are available. Returns True if all are, else None."""
    done, requested = True, await _requested(op)
    for device in requested:
        if device.attachment_id is not None:
            continue
        if await _is_available(op, device.volume):
            await volumes.reserve(op, device)
        else:
            done = False
    if done and requested and not op.services.config.volume.cross_az_attach:
        await _keep_zone(op, requested)
    return True if done else None


async def _keep_zone(op: Operation, requested: list[BlockDevice]) -> None:
    """Pin the server to the zone of its volumes. Raises Failed if a volume is in another one."""
    pinned, auth = (await server_of(op)).pinned_zone, await op.services.identity.auth()
    zone = pinned
    for device in requested:
        async with volumes.volume_errors():
            volume = await op.services.volume.show(device.volume, auth)
        where = volume.availability_zone if volume is not None else zone
        zone = zone or where
        if where != zone:
            raise Failed(f"Volume {device.volume} is in availability zone {where}, and the server must be in {zone}.")
    if zone != pinned:
        async with op.db.transaction() as tx:
            await model.set_pinned_zone(tx, str(op.server_id), zone)
            await fence(op, tx)


async def delete_created(op: Operation) -> None:
    """Undo `create`: release existing volumes and delete created ones."""
    requested = await _requested(op)
    await volumes.release(op, *(device.volume_id for device in requested if device.volume_id is not None))
    for device in requested:
        if _is_created(device):
            await _delete_volume(op, device)
        async with op.db.transaction() as tx:
            if _is_created(device):
                await devices.set_volume(tx, device.uuid, None)
            await devices.set_attachment(tx, device.uuid, None)
            await fence(op, tx)


async def delete(op: Operation) -> None:
    """Delete volumes with `delete_on_termination`. A volume that cannot be deleted is detached and stays."""
    for device in await devices.volumes_of(op.db, str(op.server_id)):
        if device.delete_on_termination:
            try:
                await _delete(op, device.volume)
            except VolumeError as error:
                logger.warning("volume %s of server %s stays: %s", device.volume_id, op.server_id, error)


async def _delete(op: Operation, volume_id: str) -> None:
    """Delete a volume, by force if it is being re-imaged."""
    auth = await op.services.identity.auth()
    try:
        await op.services.volume.delete(volume_id, auth)
    except VolumeError:
        found = await op.services.volume.show(volume_id, auth)
        if found is None or found.status != DOWNLOADING:
            raise
        await op.services.volume.force_delete(volume_id, auth)


async def _requested(op: Operation) -> list[BlockDevice]:
    return [device for device in await devices.of_server(op.db, str(op.server_id)) if device.is_volume]


def _is_created(device: BlockDevice) -> bool:
    return device.source_type != "volume"


async def _create(op: Operation, device: BlockDevice, recorded_hash: str | None) -> None:
    async with volumes.volume_errors():
        found = await _find_created(op, device)
        if found:
            volume = found[0]
        else:
            request = _request(device) | await _requested_zone(op)
            volume = await op.services.volume.create(request, await _owner(op))
    if volume.encrypted:
        # Undoing the step finds the volume by its metadata and deletes it.
        raise Failed(encryption_error(volume.id))
    if device.source_id is not None:
        # This check follows the request, because the volume service keeps the hash that the image had then.
        await images.check_unchanged(op, device.source_id, recorded_hash)
    async with op.db.transaction() as tx:
        await devices.set_volume(tx, device.uuid, volume.id)
        await fence(op, tx)


async def _owner(op: Operation) -> Auth:
    """Authorization of the service user in the server's project, which owns the volumes."""
    try:
        return await op.services.identity.auth(op.project_id)
    except IdentityError as error:
        raise Failed("Volumes cannot be made for servers of this project.", fault=str(error)) from error


async def _requested_zone(op: Operation) -> dict[str, object]:
    """The pinned zone of the server, if its volumes must be there."""
    if op.services.config.volume.cross_az_attach:
        return {}
    zone = (await server_of(op)).pinned_zone
    return {"availability_zone": zone} if zone else {}


def _request(device: BlockDevice) -> dict[str, object]:
    request: dict[str, object] = {"size": device.volume_size, "name": "", "metadata": {DEVICE: device.uuid}}
    if device.source_type in _SOURCES:
        request[_SOURCES[device.source_type]] = device.source_id
    if device.volume_type:
        request["volume_type"] = device.volume_type
    return request


async def _find_created(op: Operation, device: BlockDevice) -> list[Volume]:
    """Volumes that an earlier run created for the device.

    A volume service without the metadata filter returns other volumes as well.
    """
    wanted = f'{{"{DEVICE}": "{device.uuid}"}}'
    auth = await op.services.identity.auth()
    found = await op.services.volume.volumes(auth, {"all_tenants": "1", "metadata": wanted})
    own = [volume for volume in found if volume.metadata.get(DEVICE) == device.uuid]
    return [volume for volume in own if volume.status != "deleting"]


async def _wait_briefly(op: Operation) -> None:
    until = asyncio.get_running_loop().time() + FIRST_WAIT_SECONDS
    while await are_ready(op) is None and asyncio.get_running_loop().time() < until:
        await asyncio.sleep(POLL_SECONDS)


async def _is_available(op: Operation, volume_id: str) -> bool:
    auth = await op.services.identity.auth()
    async with volumes.volume_errors():
        volume = await op.services.volume.show(volume_id, auth)
    if volume is None or volume.status.startswith("error"):
        status = "gone" if volume is None else volume.status
        message = f"Volume {volume_id} did not finish being created: its status is {status}."
        raise await volume_messages.failure_with_message(op, volume_id, message)
    return volume.status in ("available", "reserved")


async def _delete_volume(op: Operation, device: BlockDevice) -> None:
    """Delete the created volume, by force if it is still being created."""
    auth = await op.services.identity.auth()
    async with volumes.volume_errors():
        for volume in await _find_created(op, device):
            try:
                await op.services.volume.delete(volume.id, auth)
            except VolumeError as error:
                if error.status != 400:
                    raise
                await op.services.volume.force_delete(volume.id, auth)
