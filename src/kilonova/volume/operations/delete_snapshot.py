"""Delete a snapshot: its file goes, then its row. Volumes that were made of it have copies of their own."""

from __future__ import annotations

from kilonova import clock
from kilonova.operations import Failed, Operation, Step
from kilonova.store import Transaction
from kilonova.volume.messages import model as messages
from kilonova.volume.operations.common import LANE, explained, files_of


class DeleteSnapshot(Operation):
    """`params`: `snapshot_id`. The snapshot is in the status `deleting`."""

    kind = "delete volume snapshot"
    lane = LANE
    action = ""

    @staticmethod
    def steps() -> tuple[Step, ...]:
        return (
            Step("remove content", remove, undo=None, why="content that is gone does not come back", deadline=300),
            Step("settle", settle, undo=None, why="one transaction: no snapshot", deadline=30, transaction=True),
        )

    async def failed(self, tx: Transaction, error: Failed) -> None:
        await tx.execute(
            "UPDATE volume_snapshots SET status = 'error_deleting', updated_at = $2 WHERE id = $1",
            self.params["snapshot_id"],
            clock.now(),
        )
        await messages.tell(tx, self, messages.DELETE_SNAPSHOT, self.params["snapshot_id"], error)


async def remove(op: Operation) -> None:
    sql = "SELECT id, data_id FROM volume_snapshots WHERE id = $1 AND data_id IS NOT NULL"
    rows = await op.db.fetch(sql, op.params["snapshot_id"])
    files = files_of(op)
    async with explained(op):
        await files.remove(*(files.snapshot(row["id"], row["data_id"]) for row in rows))


async def settle(op: Operation, tx: Transaction) -> None:
    await tx.execute("DELETE FROM volume_snapshots WHERE id = $1", op.params["snapshot_id"])
