"""Create a snapshot: a consistent copy of the volume's content."""

from __future__ import annotations

from msgspec import Struct

from kilonova import clock
from kilonova.operations import Entry, Failed, Operation, Step, StepResult, transaction_step
from kilonova.store import Transaction
from kilonova.store.records import encode_document
from kilonova.volume import operation_kinds as kinds
from kilonova.volume.messages import model as messages
from kilonova.volume.operations import content
from kilonova.volume.operations.common import COPY_SECONDS, LANE, get_snapshot, remove_all_files
from kilonova.volume.operations.content import Content

COPY = StepResult("copy content", Content)


class SnapshotParams(Struct, frozen=True):
    snapshot_id: str


class CreateSnapshot(Operation[SnapshotParams]):
    """The snapshot's row exists, in the status `creating`."""

    kind = kinds.CREATE_VOLUME_SNAPSHOT
    lane = LANE
    action = ""

    @staticmethod
    def steps() -> tuple[Entry[CreateSnapshot], ...]:
        return (
            Step(COPY, copy, undo=remove_copy, deadline=COPY_SECONDS),
            transaction_step("settle", settle, "sets the content"),
        )

    async def failed(self, tx: Transaction, error: Failed) -> None:
        await tx.execute(
            "UPDATE volume_snapshots SET status = 'error', updated_at = $2 WHERE id = $1 AND status <> 'deleting'",
            self.params.snapshot_id,
            clock.now(),
        )
        await messages.record_failure(tx, self, messages.CREATE_SNAPSHOT, self.params.snapshot_id, error)


async def copy(op: CreateSnapshot) -> Content:
    snapshot = await get_snapshot(op)
    return await content.write(op, content.SNAPSHOT, snapshot, {content.VOLUME: snapshot.volume_id})


async def remove_copy(op: CreateSnapshot) -> None:
    await remove_all_files(op, op.params.snapshot_id)


async def settle(op: CreateSnapshot, tx: Transaction) -> None:
    snapshot = await get_snapshot(op, tx)
    written = op.result(COPY)
    await tx.execute(
        "UPDATE volume_snapshots SET data_id = $2, bootable = $3, image_metadata = $4, status = 'available',"
        " progress = 100, updated_at = $5 WHERE id = $1",
        snapshot.id,
        written.data_id,
        written.bootable,
        encode_document(written.image_metadata) if written.image_metadata else None,
        clock.now(),
    )
