"""Extend a volume. Compute is notified if servers use it, so that guests see the new size."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from kilonova.operations import Entry, Failed, Operation, Step, transaction_step
from kilonova.store import Transaction
from kilonova.volume import operation_kinds as kinds
from kilonova.volume.files import GIB, check_space, in_thread, resize
from kilonova.volume.messages import model as messages
from kilonova.volume.operations.common import (
    COPY_SECONDS,
    LANE,
    exports_suspended,
    get_volume,
    translate_errors,
    volume_files,
)
from kilonova.volume.operations.notify_compute import EXTENDED, begin_notifications
from kilonova.volume.volumes import model
from kilonova.volume.volumes.model import Volume

ACTION = "os-extend"


class ExtendVolumeParams(Struct, frozen=True):
    """The sizes are in GiB."""

    volume_id: str
    before: int
    size: int


class ExtendVolume(Operation[ExtendVolumeParams]):
    """The row has the new size already, for the quota."""

    kind = kinds.GROW_VOLUME
    lane = LANE
    action = ""

    @staticmethod
    def steps() -> tuple[Entry[ExtendVolume], ...]:
        return (
            # Waits while the volume is being copied.
            Step("grow content", grow, undo=shrink, deadline=COPY_SECONDS),
            transaction_step("settle", settle, "sets the status and begins the notifications"),
        )

    async def failed(self, tx: Transaction, error: Failed) -> None:
        volume_id = self.params.volume_id
        await tx.execute("UPDATE volumes SET size = $2 WHERE id = $1", volume_id, self.params.before)
        await model.end_transition(tx, volume_id, ACTION, ok=False)
        await messages.record_failure(tx, self, messages.EXTEND, volume_id, error)


async def grow(op: ExtendVolume) -> None:
    volume = await get_volume(op)
    async with translate_errors(op), exports_suspended(op, volume.id):
        check_space(volume_files(op).root, 0, volume_files(op).reserved_gb)
        await in_thread(resize, _content(op, volume), op.params.size * GIB)


async def shrink(op: ExtendVolume) -> None:
    """Safe: the new size was not announced, so no guest has written beyond the old one."""
    try:
        volume = await get_volume(op)
        async with exports_suspended(op, volume.id):
            await in_thread(resize, _content(op, volume), op.params.before * GIB)
    except (Failed, FileNotFoundError):
        pass


async def settle(op: ExtendVolume, tx: Transaction) -> None:
    await get_volume(op, tx)
    await model.end_transition(tx, op.params.volume_id, ACTION)
    await begin_notifications(tx, op, EXTENDED)


def _content(op: ExtendVolume, volume: Volume) -> Path:
    return volume_files(op).volume(volume.id, str(volume.data_id))
