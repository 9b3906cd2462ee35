"""Create an image of a server: its host uploads the disk while the server keeps running.

For a volume-backed server the volume service takes snapshots of the volumes. The image has no data; its
`block_device_mapping` refers to the snapshots.
"""

from __future__ import annotations

from msgspec import Struct

from kilonova.compute import operation_kinds as kinds
from kilonova.compute import volume_messages
from kilonova.compute.block_devices import model as devices
from kilonova.compute.block_devices.model import BlockDevice
from kilonova.compute.operations.steps import images, volumes
from kilonova.compute.operations.steps.images import HOUR_SECONDS, MAKE, UPLOADING
from kilonova.compute.operations.steps.server import Harmless, server_of
from kilonova.image.client import ImageError
from kilonova.operations import Entry, Failed, Step, StepResult, TransientError
from kilonova.store.records import encode_document
from kilonova.volume.client import VolumeSnapshot

# The snapshots by volume.
SNAPSHOT_VOLUMES = StepResult("snapshot volumes", dict[str, str])
AWAIT_SNAPSHOTS, DESCRIBE = "wait for the snapshots", "describe image"
# Metadata key of a snapshot: the image that it was taken for. A repeated step finds its snapshots by it.
IMAGE = "image_id"
_MAPPED = (
    *("boot_index", "delete_on_termination", "destination_type", "device_name", "device_type", "disk_bus"),
    *("guest_format", "source_type", "tag", "volume_size", "volume_type"),
)


class CreateImageParams(Struct, frozen=True):
    name: str
    metadata: dict[str, str]


class CreateImage(Harmless[CreateImageParams]):
    """Create an image of a server: its host uploads the disk while the server keeps running."""

    kind = kinds.CREATE_IMAGE
    action = "createImage"

    @staticmethod
    def steps() -> tuple[Entry[CreateImage], ...]:
        return (
            images.make_image_step("image_snapshot"),
            images.snapshot_step(),
        )


class CreateVolumeImage(Harmless[CreateImageParams]):
    kind = kinds.CREATE_VOLUME_IMAGE
    action = "createImage"

    @staticmethod
    def steps() -> tuple[Entry[CreateVolumeImage], ...]:
        deleted = f"the image is deleted by undoing '{MAKE}'"
        waiting = f"the snapshots are deleted by undoing '{SNAPSHOT_VOLUMES}'"
        return (
            images.make_image_step("image_snapshot"),
            Step(
                SNAPSHOT_VOLUMES,
                snapshot_volumes,
                undo=drop_snapshots,
                deadline=300,
                task_state="image_snapshot",
                cancellable=False,
            ),
            Step(
                AWAIT_SNAPSHOTS,
                await_snapshots,
                undo=None,
                why=waiting,
                deadline=6 * HOUR_SECONDS,
                task_state="image_pending_upload",
            ),
            Step(DESCRIBE, describe, undo=None, why=deleted, deadline=120, task_state=UPLOADING),
        )


# Volume snapshots


async def snapshot_volumes(op: CreateVolumeImage) -> dict[str, str]:
    """Take a snapshot of each volume, owned by the server's project. Returns their ids by volume."""
    image_id, auth = op.result(MAKE), await op.services.identity.auth(op.project_id)
    known = {one.volume_id: one.id for one in await _snapshots(op)}
    async with volumes.volume_errors():
        for device in await volumes.of_server(op):
            if device.volume not in known:
                body = {
                    "volume_id": device.volume,
                    "name": f"snapshot for {op.params.name}"[: images.NAME_LENGTH],
                    "force": True,
                    "metadata": {IMAGE: image_id},
                }
                known[device.volume] = (await op.services.volume.create_snapshot(body, auth)).id
    return known


async def await_snapshots(op: CreateVolumeImage) -> None:
    for one in await _snapshots(op):
        if one.status == "error":
            message = f"The volume service could not make a snapshot of volume {one.volume_id}."
            raise await volume_messages.failure_with_message(op, one.id, message)
        if one.status != "available":
            raise TransientError(f"the snapshot of volume {one.volume_id} is {one.status}")


async def drop_snapshots(op: CreateVolumeImage) -> None:
    """Delete the operation's snapshots. Waits for unfinished ones, and leaves those in `error_deleting`."""
    auth = await op.services.identity.auth(op.project_id)
    left = [one for one in await _snapshots(op) if one.status != "error_deleting"]
    for one in left:
        if one.status in ("available", "error"):
            async with volumes.volume_errors():
                await op.services.volume.delete_snapshot(one.id, auth)
    if left:
        raise TransientError("snapshots are being deleted")


async def _snapshots(op: CreateVolumeImage) -> list[VolumeSnapshot]:
    """The snapshots that this operation has taken."""
    auth, image_id = await op.services.identity.auth(op.project_id), images.snapshot_id(op.id)
    found: list[VolumeSnapshot] = []
    async with volumes.volume_errors():
        for device in await volumes.of_server(op):
            found += await op.services.volume.snapshots(auth, {"volume_id": device.volume})
    return [one for one in found if one.metadata.get(IMAGE) == image_id]


async def describe(op: CreateVolumeImage) -> None:
    """Write the block device mapping to the image, and activate it with empty data."""
    image_id = op.result(MAKE)
    if await images.is_filled(op, image_id):
        return
    server, found = await server_of(op), await devices.of_server(op.db, str(op.server_id))
    mapping = [_mapped(device, op.result(SNAPSHOT_VOLUMES).get(device.volume_id or "")) for device in found]
    properties = {
        "root_device_name": server.root_device_name,
        "bdm_v2": "True",
        "block_device_mapping": encode_document(mapping),
    }
    token = await op.services.image.owner_token(op.services.identity, op.project_id)
    try:
        changes = [{"op": "add", "path": f"/{key}", "value": value} for key, value in properties.items()]
        await op.services.image.patch(image_id, changes, token)
        await op.services.image.upload(image_id, b"", token)
    except ImageError as error:
        raise Failed(f"The image service refused the image: {error}") from error


def _mapped(device: BlockDevice, snapshot_id: str | None) -> dict[str, object]:
    """The block device mapping entry of a new server: from the snapshot, or a blank local disk."""
    entry: dict[str, object] = {key: getattr(device, key) for key in _MAPPED}
    if snapshot_id is not None:
        entry |= {"source_type": "snapshot", "snapshot_id": snapshot_id}
    elif device.guest_format != "swap":
        entry["volume_size"] = (device.volume_size or 0) // 1024
    return entry
