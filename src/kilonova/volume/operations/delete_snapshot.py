"""Delete a snapshot: first its file, then its row. Volumes created from it have copies of their own."""

from __future__ import annotations

from kilonova.operations import Entry, Failed, Operation, Step, transaction_step
from kilonova.store import Transaction
from kilonova.volume import operation_kinds as kinds
from kilonova.volume.messages import model as messages
from kilonova.volume.operations.common import LANE, translate_errors, volume_files
from kilonova.volume.operations.create_snapshot import SnapshotParams
from kilonova.volume.snapshots import model as snapshots


class DeleteSnapshot(Operation[SnapshotParams]):
    """The snapshot is in the status `deleting`."""

    kind = kinds.DELETE_VOLUME_SNAPSHOT
    lane = LANE
    action = ""

    @staticmethod
    def steps() -> tuple[Entry[DeleteSnapshot], ...]:
        return (
            Step("remove content", remove, undo=None, why="deleted content cannot be restored", deadline=300),
            transaction_step("settle", settle, "deletes the row"),
        )

    async def failed(self, tx: Transaction, error: Failed) -> None:
        await snapshots.change(tx, self.params.snapshot_id, {"status": snapshots.ERROR_DELETING})
        await messages.record_failure(tx, self, messages.DELETE_SNAPSHOT, self.params.snapshot_id, error)


async def remove(op: DeleteSnapshot) -> None:
    snapshot, files = await snapshots.get(op.db, op.params.snapshot_id), volume_files(op)
    if snapshot is not None and snapshot.data_id is not None:
        async with translate_errors(op):
            await files.remove(files.snapshot(snapshot.id, snapshot.data_id))


async def settle(op: DeleteSnapshot, tx: Transaction) -> None:
    await tx.execute("DELETE FROM volume_snapshots WHERE id = $1", op.params.snapshot_id)
