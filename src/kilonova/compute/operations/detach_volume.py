"""Detach a volume: detach it from the guest, then release it. A server without a host only releases it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from kilonova.compute import operation_kinds as kinds
from kilonova.compute.block_devices import model as devices
from kilonova.compute.block_devices.model import BlockDevice
from kilonova.compute.host_calls import DETACH_TIMEOUT_SECONDS, UNLESS_MISSING, call
from kilonova.compute.operations.steps import cleanup, volumes
from kilonova.compute.operations.steps.server import Harmless, fence, server_of
from kilonova.compute.operations.steps.volumes import DeviceParams
from kilonova.compute.servers import model
from kilonova.compute.volume_messages import VolumeFailed
from kilonova.hosts.messages.verbs import DetachDisk
from kilonova.identity.client import Auth
from kilonova.operations import Entry, Step, StepResult, transaction_step
from kilonova.store import Transaction

# Whether the volume was in use.
BEGIN = StepResult("begin detaching", bool)
DETACH = "detach disk"
IN_USE, DETACHING = "in-use", "detaching"


class DetachVolume(Harmless[DeviceParams]):
    kind = kinds.DETACH_VOLUME
    action = "detach_volume"
    blocks_requests = False

    @staticmethod
    def steps() -> tuple[Entry[DetachVolume], ...]:
        return (
            Step(BEGIN, begin_detaching, undo=roll_detaching, deadline=120),
            Step(DETACH, detach, undo=attach_again, deadline=300),
            Step("release volume", release, undo=acquire_again, deadline=300),
            transaction_step("settle", settle, "the device"),
        )


async def begin_detaching(op: DetachVolume) -> bool:
    """Set the volume to `detaching`. Returns whether it was in use; a repeated step finds it detaching."""
    return await _turn(op, IN_USE, op.services.volume.begin_detaching)


async def roll_detaching(op: DetachVolume) -> None:
    await _turn(op, DETACHING, op.services.volume.roll_detaching)


async def _turn(op: DetachVolume, status: str, act: Callable[[str, Auth], Awaitable[None]]) -> bool:
    """Switch a volume between `in-use` and `detaching`."""
    device, auth = await device_of(op), await op.services.identity.auth()
    async with volumes.volume_errors():
        volume = await op.services.volume.show(device.volume, auth) if device else None
        if volume and volume.status == status:
            await act(volume.id, auth)
    return volume is not None and volume.status in (IN_USE, DETACHING)


async def detach(op: DetachVolume) -> None:
    """Detach the disk. A missing guest has none."""
    server, device = await server_of(op), await device_of(op)
    if device is None or not server.host:
        return
    verb = DetachDisk(guest_id=server.id, volume_id=device.volume)
    await call(op, server.host, DETACH, verb, UNLESS_MISSING, takes=DETACH_TIMEOUT_SECONDS)


async def attach_again(op: DetachVolume) -> None:
    server, device = await server_of(op), await device_of(op)
    if device is not None and server.host:
        await cleanup.attach_disk(op, server.host, f"undo {DETACH}", device)


async def release(op: DetachVolume) -> None:
    if (device := await device_of(op)) is not None:
        await volumes.release(op, device.volume)


async def acquire_again(op: DetachVolume) -> None:
    """Undo `release`. A volume that another server has reserved stays detached."""
    server, device = await server_of(op), await device_of(op)
    if device is None:
        return
    try:
        if server.host:
            await volumes.restore_connection(op, server.host, [device])
        else:
            await _reserve_again(op, device)
    except VolumeFailed:
        async with op.db.transaction() as tx:
            await devices.remove(tx, device.uuid)
            await fence(op, tx)


async def _reserve_again(op: DetachVolume, device: BlockDevice) -> None:
    """Reserve the volume again for a server without a host."""
    attachment_id = await volumes.reserve(op, device)
    if op.result(BEGIN):
        await volumes.complete_attachments(op, attachment_id)


async def settle(op: DetachVolume, tx: Transaction) -> None:
    await devices.remove(tx, op.params.device)
    await model.settle_unchanged(tx, str(op.server_id))


async def device_of(op: DetachVolume) -> BlockDevice | None:
    """The device, or None if another request has detached it."""
    return await devices.get(op.db, op.params.device)
