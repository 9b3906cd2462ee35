"""Extend an attached volume: the guest learns the new size."""

from __future__ import annotations

from kilonova.compute import operation_kinds as kinds
from kilonova.compute.block_devices import model as devices
from kilonova.compute.host_calls import call
from kilonova.compute.operations.steps import volumes
from kilonova.compute.operations.steps.server import Harmless, server_of
from kilonova.compute.operations.steps.volumes import ExtendVolumeParams
from kilonova.hosts.messages.verbs import GrowDisk
from kilonova.operations import Entry, Step, StepResult, transaction_step
from kilonova.store import Transaction

# The new size in GiB. Clients wait for the event of this name.
GROW = StepResult("compute_extend_volume", int)


class ExtendVolume(Harmless[ExtendVolumeParams]):
    kind = kinds.EXTEND_VOLUME
    action = "extend_volume"
    blocks_requests = False

    @staticmethod
    def steps() -> tuple[Entry[ExtendVolume], ...]:
        return (
            Step(GROW, grow, undo=None, why="volumes do not shrink", deadline=300),
            transaction_step("settle", settle, "the size"),
        )


async def grow(op: ExtendVolume) -> int | None:
    """Tell the guest. Returns the new size in GiB, or None if volume or guest is no longer there."""
    server, volume_id = await server_of(op), op.params.volume_id
    if await devices.of_volume(op.db, server.id, volume_id) is None or server.host is None:
        return None
    async with volumes.volume_errors():
        volume = await op.services.volume.show(volume_id, await op.services.identity.auth())
    if volume is None:
        return None
    verb = GrowDisk(guest_id=server.id, volume_id=volume_id, size_gb=volume.size)
    await call(op, server.host, GROW.name, verb)
    return volume.size


async def settle(op: ExtendVolume, tx: Transaction) -> None:
    if (size := op.find_result(GROW)) is not None:
        await devices.set_size(tx, str(op.server_id), op.params.volume_id, size)
