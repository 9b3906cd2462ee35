"""Delete a volume: first its file, then its row. With `cascade` its snapshots are deleted too."""

from __future__ import annotations

from msgspec import Struct

from kilonova.operations import Entry, Failed, Operation, Step, transaction_step
from kilonova.store import Transaction
from kilonova.volume import operation_kinds as kinds
from kilonova.volume.messages import model as messages
from kilonova.volume.operations.common import LANE, translate_errors, volume_files
from kilonova.volume.snapshots import model as snapshots
from kilonova.volume.volumes import model, states


class DeleteVolumeParams(Struct, frozen=True):
    volume_id: str
    cascade: bool = False


class DeleteVolume(Operation[DeleteVolumeParams]):
    """The volume, and with `cascade` its snapshots, have the status `deleting`."""

    kind = kinds.DELETE_VOLUME
    lane = LANE
    action = ""

    @staticmethod
    def steps() -> tuple[Entry[DeleteVolume], ...]:
        return (
            Step("remove content", remove, undo=None, why="deleted content cannot be restored", deadline=300),
            transaction_step("settle", settle, "deletes the rows"),
        )

    async def failed(self, tx: Transaction, error: Failed) -> None:
        volume_id = self.params.volume_id
        await model.set_status(tx, volume_id, states.ERROR_DELETING)
        await messages.record_failure(tx, self, messages.DELETE_VOLUME, volume_id, error)
        if self.params.cascade:
            await snapshots.set_all_statuses(tx, volume_id, snapshots.ERROR_DELETING)


async def remove(op: DeleteVolume) -> None:
    volume_id, files = op.params.volume_id, volume_files(op)
    sql = "SELECT id, data_id FROM {} WHERE {} = $1 AND data_id IS NOT NULL"
    rows = await op.db.fetch(sql.format("volumes", "id"), volume_id)
    paths = [files.volume(row["id"], row["data_id"]) for row in rows]
    if op.params.cascade:
        rows = await op.db.fetch(sql.format("volume_snapshots", "volume_id"), volume_id)
        paths += [files.snapshot(row["id"], row["data_id"]) for row in rows]
    async with translate_errors(op):
        await files.remove(*paths)


async def settle(op: DeleteVolume, tx: Transaction) -> None:
    volume_id = op.params.volume_id
    await model.get(tx, volume_id, lock=True)  # lock order: volume, then snapshots
    if op.params.cascade:
        await tx.execute("DELETE FROM volume_snapshots WHERE volume_id = $1", volume_id)
    await model.delete_row(tx, volume_id)
