"""Attach a volume: reserved for the server, connected to its host, given to its guest. One with no host only has it."""

from __future__ import annotations

from kilonova.compute.block_devices import model as devices
from kilonova.compute.operations import left_disks, silence, volumes
from kilonova.compute.operations.common import Harmless, server_of
from kilonova.compute.servers import model
from kilonova.hosts.messages import AttachDisk
from kilonova.operations import Failed, Operation, Step
from kilonova.store import Transaction

ATTACH = "attach disk"


class AttachVolume(Harmless):
    """`params`: `device`, the uuid of the server's block device, which is written together with the operation."""

    kind = "attach_volume"
    action = "attach_volume"
    beside = True

    @staticmethod
    def steps() -> tuple[Step, ...]:
        with_it = "it goes with the reservation"
        return (
            Step("reserve volume", reserve, undo=release, deadline=120),
            Step("connect volume", connect, undo=None, why=with_it, deadline=300),
            Step(ATTACH, attach, undo=detach, deadline=300),
            Step("complete volume", complete, undo=None, why=with_it, deadline=120),
            Step("settle", settle, undo=None, why="one transaction: an old fault", deadline=30, transaction=True),
        )

    async def failed(self, tx: Transaction, error: Failed) -> None:
        await devices.remove(tx, self.params["device"])
        await super().failed(tx, error)


async def reserve(op: Operation) -> None:
    await volumes.reserve(op, await volumes.device_of(op))


async def release(op: Operation) -> None:
    """Not what the guest on a silent host may still have."""
    server, device = await server_of(op), await volumes.device_of(op)
    if not (server["host"] and await left_disks.is_left(op, server["host"], device["volume_id"])):
        await volumes.release(op, [device])


async def connect(op: Operation) -> None:
    server = await server_of(op)
    if server["host"]:
        await volumes.connect(op, await volumes.device_of(op), server["host"])


async def attach(op: Operation) -> None:
    server = await server_of(op)
    if server["host"]:
        disk = devices.disk_of(await volumes.device_of(op))
        await silence.demand(op, server["host"], ATTACH, AttachDisk(guest_id=server["id"], disk=disk))


async def detach(op: Operation) -> None:
    server, device = await server_of(op), await volumes.device_of(op)
    if server["host"]:
        await left_disks.take(op, server["host"], f"undo {ATTACH}", device["volume_id"])


async def complete(op: Operation) -> None:
    """Also of a server that has no host: to its users the volume is in use."""
    await volumes.complete(op, [await volumes.device_of(op)])


async def settle(op: Operation, tx: Transaction) -> None:
    server = await server_of(op, tx)
    await model.settle(tx, server["id"], server["vm_state"], server["power_state"])
