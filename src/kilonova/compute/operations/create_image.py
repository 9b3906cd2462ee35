"""Create an image: a server's disk, as it is now, becomes an image of its project, and the server goes on.

Of a server that boots from a volume there is no disk to write. Its volumes are snapshotted by the volume service, and
the image, without any data, says how a server is made of the snapshots.
"""

from __future__ import annotations

from typing import Any

import orjson

from kilonova.compute.block_devices import model as devices
from kilonova.compute.operations import images, silence, volumes
from kilonova.compute.operations.common import Harmless, server_of, transfer_of
from kilonova.compute.volumes import reasons
from kilonova.hosts.messages import Snapshot
from kilonova.image.client import ImageError
from kilonova.operations import Failed, Operation, Passing, Step
from kilonova.store import Row

MAKE, SNAPSHOT = "make image", "snapshot"
SNAPSHOT_VOLUMES, AWAIT_SNAPSHOTS, DESCRIBE = "snapshot volumes", "wait for the snapshots", "describe image"
PENDING, UPLOADING = "image_pending_upload", "image_uploading"
HOURS = 3600.0
# By this key of its metadata a snapshot is found again, and says what it was made for.
IMAGE = "image_id"
_MAPPED = (
    *("boot_index", "delete_on_termination", "destination_type", "device_name", "device_type", "disk_bus"),
    *("guest_format", "source_type", "tag", "volume_size", "volume_type"),
)


def _make_image() -> Step:
    # Not cancellable: else the image service might make it after the undo has looked for it.
    return Step(MAKE, make, undo=drop, deadline=120, task_state="image_snapshot", cancellable=False)


class CreateImage(Harmless):
    """`params`: `name` and `metadata`, of the image; its id is `images.snapshot_id`."""

    kind = "create image"
    action = "createImage"

    @staticmethod
    def steps() -> tuple[Step, ...]:
        filled = f"the image that it fills is deleted by undoing '{MAKE}'"
        return (
            _make_image(),
            Step(SNAPSHOT, fill, undo=None, why=filled, deadline=6 * HOURS, task_state=UPLOADING),
        )


class CreateVolumeImage(Harmless):
    """`params`: those of CreateImage."""

    kind = "create volume image"
    action = "createImage"

    @staticmethod
    def steps() -> tuple[Step, ...]:
        deleted = f"the image is deleted by undoing '{MAKE}'"
        waiting = f"the snapshots are deleted by undoing '{SNAPSHOT_VOLUMES}'"
        return (
            _make_image(),
            Step(
                SNAPSHOT_VOLUMES,
                snapshot_volumes,
                undo=drop_snapshots,
                deadline=300,
                task_state="image_snapshot",
                cancellable=False,
            ),
            Step(AWAIT_SNAPSHOTS, await_snapshots, undo=None, why=waiting, deadline=6 * HOURS, task_state=PENDING),
            Step(DESCRIBE, describe, undo=None, why=deleted, deadline=120, task_state=UPLOADING),
        )


# The image


async def make(op: Operation) -> str:
    server, image_id = await server_of(op), images.snapshot_id(op.id)
    try:
        await images.create(op.services, image_id, server, op.params["name"], op.params["metadata"])
    except ImageError as error:
        raise Failed(f"The image service refused the image: {error}") from error
    return image_id


async def drop(op: Operation) -> None:
    await images.delete(op, images.snapshot_id(op.id))


async def fill(op: Operation) -> None:
    """Data that is there, whoever was told of it, is the disk at a moment since the image was asked for."""
    server, image_id = await server_of(op), op.results[MAKE]
    try:
        if not await images.is_filled(op, image_id):
            data = await transfer_of(op.services, image_id)
            await silence.demand(op, server["host"], SNAPSHOT, Snapshot(guest_id=server["id"], data=data))
    except Failed:
        if not await images.is_filled(op, image_id):
            raise


# The volumes


async def snapshot_volumes(op: Operation) -> dict[str, str]:
    """The id of each volume's snapshot. They belong to the server's project, like the image."""
    image_id, auth = op.results[MAKE], await op.services.identity.auth(op.project_id)
    known = {one["volume_id"]: one["id"] for one in await _snapshots(op)}
    async with volumes.explained():
        for device in await volumes.of_server(op):
            volume_id = device["volume_id"]
            if volume_id not in known:
                asked = {
                    "volume_id": volume_id,
                    "name": f"snapshot for {op.params['name']}"[: images.NAME_LENGTH],
                    "force": True,
                    "metadata": {IMAGE: image_id},
                }
                known[volume_id] = (await op.services.volume.create_snapshot(asked, auth))["id"]
    return known


async def await_snapshots(op: Operation) -> None:
    for one in await _snapshots(op):
        if one["status"] == "error":
            message = f"The volume service could not make a snapshot of volume {one['volume_id']}."
            raise await reasons.failure(op, one["id"], message)
        if one["status"] != "available":
            raise Passing(f"the snapshot of volume {one['volume_id']} is {one['status']}")


async def drop_snapshots(op: Operation) -> None:
    """One that is still being made cannot be deleted before it is; one that the service failed to delete is its own."""
    auth = await op.services.identity.auth(op.project_id)
    left = [one for one in await _snapshots(op) if one["status"] != "error_deleting"]
    for one in left:
        if one["status"] in ("available", "error"):
            async with volumes.explained():
                await op.services.volume.delete_snapshot(one["id"], auth)
    if left:
        raise Passing("snapshots are being deleted")


async def _snapshots(op: Operation) -> list[volumes.Item]:
    """Those that this operation has made."""
    auth, image_id, found = await op.services.identity.auth(op.project_id), images.snapshot_id(op.id), []
    async with volumes.explained():
        for device in await volumes.of_server(op):
            found += await op.services.volume.snapshots(auth, {"volume_id": device["volume_id"]})
    return [one for one in found if one["metadata"].get(IMAGE) == image_id]


async def describe(op: Operation) -> None:
    """Write what the image says, then have it active, with data of no length."""
    image_id = op.results[MAKE]
    if await images.is_filled(op, image_id):
        return
    server, found = await server_of(op), await devices.of_server(op.db, str(op.server_id))
    mapping = [_mapped(device, op.results[SNAPSHOT_VOLUMES].get(device["volume_id"])) for device in found]
    said = {
        "root_device_name": server["root_device_name"],
        "bdm_v2": "True",
        "block_device_mapping": orjson.dumps(mapping).decode(),
    }
    token = await op.services.identity.token()
    try:
        changes = [{"op": "add", "path": f"/{key}", "value": value} for key, value in said.items()]
        await op.services.image.patch(image_id, changes, token)
        await op.services.image.upload(image_id, b"", token)
    except ImageError as error:
        raise Failed(f"The image service refused the image: {error}") from error


def _mapped(device: Row, snapshot_id: str | None) -> dict[str, Any]:
    """The device as a new server asks for it: of the snapshot, or an empty local disk as before."""
    entry: dict[str, Any] = {key: device[key] for key in _MAPPED}
    if snapshot_id is not None:
        entry |= {"source_type": "snapshot", "snapshot_id": snapshot_id}
    elif device["guest_format"] != "swap":
        entry["volume_size"] = (device["volume_size"] or 0) // 1024
    return entry
