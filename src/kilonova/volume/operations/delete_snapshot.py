"""Delete a snapshot: first its file, then its row. Volumes created from it have copies of their own."""

from __future__ import annotations

from kilonova.operations import Failed, Operation, Step, transaction_step
from kilonova.store import Transaction
from kilonova.volume.messages import model as messages
from kilonova.volume.operations.common import LANE, translate_errors, volume_files
from kilonova.volume.snapshots import model as snapshots


class DeleteSnapshot(Operation):
    """`params`: `snapshot_id`. The snapshot is in the status `deleting`."""

    kind = "delete_volume_snapshot"
    lane = LANE
    action = ""

    @staticmethod
    def steps() -> tuple[Step, ...]:
        return (
            Step("remove content", remove, undo=None, why="deleted content cannot be restored", deadline=300),
            transaction_step("settle", settle, "deletes the row"),
        )

    async def failed(self, tx: Transaction, error: Failed) -> None:
        await snapshots.change(tx, self.params["snapshot_id"], {"status": snapshots.ERROR_DELETING})
        await messages.record_failure(tx, self, messages.DELETE_SNAPSHOT, self.params["snapshot_id"], error)


async def remove(op: Operation) -> None:
    sql = "SELECT id, data_id FROM volume_snapshots WHERE id = $1 AND data_id IS NOT NULL"
    rows = await op.db.fetch(sql, op.params["snapshot_id"])
    files = volume_files(op)
    async with translate_errors(op):
        await files.remove(*(files.snapshot(row["id"], row["data_id"]) for row in rows))


async def settle(op: Operation, tx: Transaction) -> None:
    await tx.execute("DELETE FROM volume_snapshots WHERE id = $1", op.params["snapshot_id"])
