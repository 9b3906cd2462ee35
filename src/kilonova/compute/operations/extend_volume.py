"""Extend a volume: it has grown, and the guest that has it shall see that."""

from __future__ import annotations

from kilonova.compute.block_devices import model as devices
from kilonova.compute.operations import silence, volumes
from kilonova.compute.operations.common import Harmless, server_of
from kilonova.hosts.messages import GrowDisk
from kilonova.operations import Operation, Step
from kilonova.store import Transaction

# Clients wait for the event of this name.
GROW = "compute_extend_volume"


class ExtendVolume(Harmless):
    """`params`: `volume_id`."""

    kind = "extend_volume"
    action = "extend_volume"
    beside = True

    @staticmethod
    def steps() -> tuple[Step, ...]:
        return (
            Step(GROW, grow, undo=None, why="volumes do not shrink", deadline=300),
            Step("settle", settle, undo=None, why="one transaction: the size", deadline=30, transaction=True),
        )


async def grow(op: Operation) -> int | None:
    """The new size in GiB. Nothing for a volume that was detached or deleted meanwhile, or of a guest that is away."""
    server = await server_of(op)
    volume_id = op.params["volume_id"]
    if await devices.of_volume(op.db, server["id"], volume_id) is None or server["host"] is None:
        return None
    async with volumes.explained():
        volume = await op.services.volume.show(volume_id, await op.services.identity.auth())
    if volume is None:
        return None
    size = int(volume["size"])
    await silence.demand(op, server["host"], GROW, GrowDisk(guest_id=server["id"], volume_id=volume_id, size_gb=size))
    return size


async def settle(op: Operation, tx: Transaction) -> None:
    if (size := op.results[GROW]) is not None:
        await devices.set_size(tx, str(op.server_id), op.params["volume_id"], size)
