"""Extend an attached volume: the guest learns the new size."""

from __future__ import annotations

from kilonova.compute.block_devices import model as devices
from kilonova.compute.operations.steps import hosts, volumes
from kilonova.compute.operations.steps.server import Harmless, server_of
from kilonova.hosts.messages.verbs import GrowDisk
from kilonova.operations import Operation, Step, transaction_step
from kilonova.store import Transaction

# Clients wait for the event of this name.
GROW = "compute_extend_volume"


class ExtendVolume(Harmless):
    """`params`: `volume_id`."""

    kind = "extend_volume"
    action = "extend_volume"
    blocks_requests = False

    @staticmethod
    def steps() -> tuple[Step, ...]:
        return (
            Step(GROW, grow, undo=None, why="volumes do not shrink", deadline=300),
            transaction_step("settle", settle, "the size"),
        )


async def grow(op: Operation) -> int | None:
    """Tell the guest. Returns the new size in GiB, or None if volume or guest is no longer there."""
    server = await server_of(op)
    volume_id = op.params["volume_id"]
    if await devices.of_volume(op.db, server["id"], volume_id) is None or server["host"] is None:
        return None
    async with volumes.volume_errors():
        volume = await op.services.volume.show(volume_id, await op.services.identity.auth())
    if volume is None:
        return None
    size = int(volume["size"])
    await hosts.call_or_fail(
        op, server["host"], GROW, GrowDisk(guest_id=server["id"], volume_id=volume_id, size_gb=size)
    )
    return size


async def settle(op: Operation, tx: Transaction) -> None:
    if (size := op.results[GROW]) is not None:
        await devices.set_size(tx, str(op.server_id), op.params["volume_id"], size)
