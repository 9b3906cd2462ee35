"""Delete a volume: its files go, then its row; with it its snapshots where that was asked for."""

from __future__ import annotations

from kilonova.operations import Failed, Operation, Step
from kilonova.store import Transaction
from kilonova.volume.messages import model as messages
from kilonova.volume.operations.common import LANE, explained, files_of
from kilonova.volume.snapshots import model as snapshots
from kilonova.volume.volumes import model, states


class DeleteVolume(Operation):
    """`params`: `volume_id`, `cascade` (may be left out). The volume is in the status `deleting`, and so
    are the snapshots that go with it."""

    kind = "delete volume"
    lane = LANE
    action = ""

    @staticmethod
    def steps() -> tuple[Step, ...]:
        return (
            Step("remove content", remove, undo=None, why="content that is gone does not come back", deadline=300),
            Step("settle", settle, undo=None, why="one transaction: no volume", deadline=30, transaction=True),
        )

    async def failed(self, tx: Transaction, error: Failed) -> None:
        volume_id = self.params["volume_id"]
        await model.set_status(tx, volume_id, states.ERROR_DELETING)
        await messages.tell(tx, self, messages.DELETE_VOLUME, volume_id, error)
        if self.params.get("cascade"):
            await snapshots.set_status_of(tx, volume_id, snapshots.ERROR_DELETING)


async def remove(op: Operation) -> None:
    volume_id, files = op.params["volume_id"], files_of(op)
    sql = "SELECT id, data_id FROM {} WHERE {} = $1 AND data_id IS NOT NULL"
    rows = await op.db.fetch(sql.format("volumes", "id"), volume_id)
    gone = [files.volume(row["id"], row["data_id"]) for row in rows]
    if op.params.get("cascade"):
        rows = await op.db.fetch(sql.format("volume_snapshots", "volume_id"), volume_id)
        gone += [files.snapshot(row["id"], row["data_id"]) for row in rows]
    async with explained(op):
        await files.remove(*gone)


async def settle(op: Operation, tx: Transaction) -> None:
    volume_id = op.params["volume_id"]
    await model.get(tx, volume_id, lock=True)  # before its snapshots, like everywhere
    if op.params.get("cascade"):
        await tx.execute("DELETE FROM volume_snapshots WHERE volume_id = $1", volume_id)
    await model.delete_row(tx, volume_id)
