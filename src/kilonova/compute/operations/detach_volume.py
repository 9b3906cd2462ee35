"""Detach a volume: taken from the guest, then given back. A server with no host only gives it back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from kilonova.compute.block_devices import model as devices
from kilonova.compute.operations import left_disks, leftovers, silence, volumes
from kilonova.compute.operations.common import Harmless, fence, server_of
from kilonova.compute.servers import model
from kilonova.hosts.messages import DetachDisk
from kilonova.hosts.transport import HostFailed
from kilonova.identity.client import Auth
from kilonova.operations import Failed, Operation, Step
from kilonova.store import Row, Transaction
from kilonova.volume.client import VolumeError

BEGIN, DETACH = "begin detaching", "detach disk"
IN_USE, DETACHING = "in-use", "detaching"


class DetachVolume(Harmless):
    """`params`: `device`, the uuid of the server's block device."""

    kind = "detach_volume"
    action = "detach_volume"
    beside = True

    @staticmethod
    def steps() -> tuple[Step, ...]:
        return (
            Step(BEGIN, begin_detaching, undo=roll_detaching, deadline=120),
            Step(DETACH, detach, undo=attach_again, deadline=300),
            Step("release volume", release, undo=acquire_again, deadline=300),
            Step("settle", settle, undo=None, why="one transaction: the device", deadline=30, transaction=True),
        )


async def begin_detaching(op: Operation) -> bool:
    """Whether the volume is in use, which is what can be detaching; whoever finds it so has been here before."""
    return await _turn(op, IN_USE, op.services.volume.begin_detaching)


async def roll_detaching(op: Operation) -> None:
    await _turn(op, DETACHING, op.services.volume.roll_detaching)


async def _turn(op: Operation, status: str, act: Callable[[str, Auth], Awaitable[None]]) -> bool:
    """Turn a volume of this status, one that is in use or detaching, to the other one."""
    device, auth = await device_of(op), await op.services.identity.auth()
    async with volumes.explained():
        volume = device and await op.services.volume.show(device["volume_id"], auth)
        if volume and volume["status"] == status:
            await act(volume["id"], auth)
    return bool(volume and volume["status"] in (IN_USE, DETACHING))


async def detach(op: Operation) -> None:
    """A guest that is gone has no volumes."""
    server, device = await server_of(op), await device_of(op)
    if device is None or not server["host"]:
        return
    try:
        verb = DetachDisk(guest_id=server["id"], volume_id=device["volume_id"])
        await silence.demand(op, server["host"], DETACH, verb, takes=silence.LETTING_GO)
    except Failed as error:
        if not (isinstance(error.__cause__, HostFailed) and error.__cause__.kind in leftovers.GONE):
            raise


async def attach_again(op: Operation) -> None:
    server, device = await server_of(op), await device_of(op)
    if device is not None and server["host"]:
        await left_disks.give(op, server["host"], f"undo {DETACH}", device)


async def release(op: Operation) -> None:
    if (device := await device_of(op)) is not None:
        await volumes.release(op, [device])


async def acquire_again(op: Operation) -> None:
    """What somebody else has got meanwhile is detached after all."""
    server, device = await server_of(op), await device_of(op)
    if device is None:
        return
    try:
        if server["host"]:
            await volumes.put_back(op, server["host"], [device])
        else:
            await _reserve_again(op, device)
    except Failed as error:
        if not isinstance(error.__cause__, VolumeError):
            raise
        async with op.db.transaction() as tx:
            await devices.remove(tx, device["uuid"])
            await fence(op, tx)


async def _reserve_again(op: Operation, device: Row) -> None:
    """Of a server that has no host, and yet may have had the volume in use."""
    attachment_id = await volumes.reserve(op, device)
    if op.results[BEGIN]:
        await volumes.complete(op, [{**device, "attachment_id": attachment_id}])


async def settle(op: Operation, tx: Transaction) -> None:
    server = await server_of(op, tx)
    await devices.remove(tx, op.params["device"])
    await model.settle(tx, server["id"], server["vm_state"], server["power_state"])


async def device_of(op: Operation) -> Row | None:
    """None once it is detached, which two may have asked for."""
    return await devices.get(op.db, op.params["device"])
