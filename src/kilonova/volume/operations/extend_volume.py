"""Extend a volume. Compute is notified if servers use it, so that guests see the new size."""

from __future__ import annotations

from pathlib import Path

from kilonova.operations import Failed, Operation, Step, transaction_step
from kilonova.store import Row, Transaction
from kilonova.volume.files import GIB, in_thread, resize
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

ACTION = "os-extend"


class ExtendVolume(Operation):
    """`params`: `volume_id`, `before` and `size` in GiB. The row has the new size already, for the quota."""

    kind = "grow_volume"
    lane = LANE
    action = ""

    @staticmethod
    def steps() -> tuple[Step, ...]:
        return (
            # Waits while the volume is being copied.
            Step("grow content", grow, undo=shrink, deadline=COPY_SECONDS),
            transaction_step("settle", settle, "sets the status and begins the notifications"),
        )

    async def failed(self, tx: Transaction, error: Failed) -> None:
        volume_id = self.params["volume_id"]
        await tx.execute("UPDATE volumes SET size = $2 WHERE id = $1", volume_id, self.params["before"])
        await model.end_transition(tx, volume_id, ACTION, ok=False)
        await messages.record_failure(tx, self, messages.EXTEND, volume_id, error)


async def grow(op: Operation) -> None:
    volume = await get_volume(op)
    async with translate_errors(op), exports_suspended(op, volume["id"]):
        await in_thread(resize, _content(op, volume), op.params["size"] * GIB)


async def shrink(op: Operation) -> None:
    """Safe: the new size was not announced, so no guest has written beyond the old one."""
    try:
        volume = await get_volume(op)
        async with exports_suspended(op, volume["id"]):
            await in_thread(resize, _content(op, volume), op.params["before"] * GIB)
    except (Failed, FileNotFoundError):
        pass


async def settle(op: Operation, tx: Transaction) -> None:
    await get_volume(op, tx)
    await model.end_transition(tx, op.params["volume_id"], ACTION)
    await begin_notifications(tx, op, EXTENDED)


def _content(op: Operation, volume: Row) -> Path:
    return volume_files(op).volume(volume["id"], volume["data_id"])
