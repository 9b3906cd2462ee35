"""Revert a volume to its newest snapshot. Until that is whole the volume has what it had."""

from __future__ import annotations

from typing import Any

from kilonova import clock
from kilonova.operations import Failed, Operation, Step
from kilonova.store import Transaction
from kilonova.volume.messages import model as messages
from kilonova.volume.operations import replacing
from kilonova.volume.operations.common import COPY_SECONDS, LANE, volume_of
from kilonova.volume.operations.replacing import WRITE
from kilonova.volume.volumes import model

ACTION = "revert"


class RevertVolume(Operation):
    """`params`: `volume_id`, `snapshot_id`. The volume is in the status `reverting`, the snapshot in `restoring`."""

    kind = "revert volume"
    lane = LANE
    action = ""

    @staticmethod
    def steps() -> tuple[Step, ...]:
        return (
            Step(WRITE, write, undo=replacing.remove, deadline=COPY_SECONDS),
            Step("settle", settle, undo=None, why="one transaction: what it is", deadline=30, transaction=True),
        )

    async def failed(self, tx: Transaction, error: Failed) -> None:
        await model.leave(tx, self.params["volume_id"], ACTION, ok=False)
        await messages.tell(tx, self, messages.REVERT, self.params["volume_id"], error)
        await _free_snapshot(tx, self)


async def write(op: Operation) -> dict[str, Any]:
    return await replacing.write(op, await volume_of(op), {"snapshot": op.params["snapshot_id"]})


async def settle(op: Operation, tx: Transaction) -> None:
    await replacing.take(op, tx)
    await model.leave(tx, op.params["volume_id"], ACTION)
    await _free_snapshot(tx, op)


async def _free_snapshot(tx: Transaction, op: Operation) -> None:
    """The snapshot was only read: it is what it was."""
    await tx.execute(
        "UPDATE volume_snapshots SET status = 'available', updated_at = $2 WHERE id = $1 AND status = 'restoring'",
        op.params["snapshot_id"],
        clock.now(),
    )
