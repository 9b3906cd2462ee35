"""Detach a volume: detach it from the guest, then release it. A server without a host only releases it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from kilonova.compute.block_devices import model as devices
from kilonova.compute.operations.steps import cleanup, hosts, volumes
from kilonova.compute.operations.steps.server import Harmless, fence, server_of
from kilonova.compute.servers import model
from kilonova.hosts.messages.verbs import DetachDisk
from kilonova.hosts.transport import HostFailed
from kilonova.identity.client import Auth
from kilonova.operations import Failed, Operation, Step, transaction_step
from kilonova.store import Row, Transaction
from kilonova.volume.client import VolumeError

BEGIN, DETACH = "begin detaching", "detach disk"
IN_USE, DETACHING = "in-use", "detaching"


class DetachVolume(Harmless):
    """`params`: `device`, the uuid of the server's block device."""

    kind = "detach_volume"
    action = "detach_volume"
    blocks_requests = False

    @staticmethod
    def steps() -> tuple[Step, ...]:
        return (
            Step(BEGIN, begin_detaching, undo=roll_detaching, deadline=120),
            Step(DETACH, detach, undo=attach_again, deadline=300),
            Step("release volume", release, undo=acquire_again, deadline=300),
            transaction_step("settle", settle, "the device"),
        )


async def begin_detaching(op: Operation) -> bool:
    """Set the volume to `detaching`. Returns whether it was in use; a repeated step finds it detaching."""
    return await _turn(op, IN_USE, op.services.volume.begin_detaching)


async def roll_detaching(op: Operation) -> None:
    await _turn(op, DETACHING, op.services.volume.roll_detaching)


async def _turn(op: Operation, status: str, act: Callable[[str, Auth], Awaitable[None]]) -> bool:
    """Switch a volume between `in-use` and `detaching`."""
    device, auth = await device_of(op), await op.services.identity.auth()
    async with volumes.volume_errors():
        volume = device and await op.services.volume.show(device["volume_id"], auth)
        if volume and volume["status"] == status:
            await act(volume["id"], auth)
    return bool(volume and volume["status"] in (IN_USE, DETACHING))


async def detach(op: Operation) -> None:
    """Detach the disk. A missing guest has none."""
    server, device = await server_of(op), await device_of(op)
    if device is None or not server["host"]:
        return
    try:
        verb = DetachDisk(guest_id=server["id"], volume_id=device["volume_id"])
        await hosts.call_or_fail(op, server["host"], DETACH, verb, takes=hosts.DETACH_TIMEOUT_SECONDS)
    except Failed as error:
        if not (isinstance(error.__cause__, HostFailed) and error.__cause__.kind in cleanup.MISSING):
            raise


async def attach_again(op: Operation) -> None:
    server, device = await server_of(op), await device_of(op)
    if device is not None and server["host"]:
        await cleanup.attach_disk(op, server["host"], f"undo {DETACH}", device)


async def release(op: Operation) -> None:
    if (device := await device_of(op)) is not None:
        await volumes.release(op, [device])


async def acquire_again(op: Operation) -> None:
    """Undo `release`. A volume that another server has reserved stays detached."""
    server, device = await server_of(op), await device_of(op)
    if device is None:
        return
    try:
        if server["host"]:
            await volumes.restore_connection(op, server["host"], [device])
        else:
            await _reserve_again(op, device)
    except Failed as error:
        if not isinstance(error.__cause__, VolumeError):
            raise
        async with op.db.transaction() as tx:
            await devices.remove(tx, device["uuid"])
            await fence(op, tx)


async def _reserve_again(op: Operation, device: Row) -> None:
    """Reserve the volume again for a server without a host."""
    attachment_id = await volumes.reserve(op, device)
    if op.results[BEGIN]:
        await volumes.complete(op, [{**device, "attachment_id": attachment_id}])


async def settle(op: Operation, tx: Transaction) -> None:
    server = await server_of(op, tx)
    await devices.remove(tx, op.params["device"])
    await model.settle(tx, server["id"], server["vm_state"], server["power_state"])


async def device_of(op: Operation) -> Row | None:
    """The device, or None if another request has detached it."""
    return await devices.get(op.db, op.params["device"])
