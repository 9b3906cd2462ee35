"""Create a snapshot: a consistent copy of the volume's content."""

from __future__ import annotations

from typing import Any

import orjson

from kilonova import clock
from kilonova.operations import Failed, Operation, Step, transaction_step
from kilonova.store import Transaction
from kilonova.volume.messages import model as messages
from kilonova.volume.operations import content
from kilonova.volume.operations.common import COPY_SECONDS, LANE, get_snapshot, remove_all_files

COPY = "copy content"


class CreateSnapshot(Operation):
    """`params`: `snapshot_id`. The snapshot's row exists, in the status `creating`."""

    kind = "create_volume_snapshot"
    lane = LANE
    action = ""

    @staticmethod
    def steps() -> tuple[Step, ...]:
        return (
            Step(COPY, copy, undo=remove_copy, deadline=COPY_SECONDS),
            transaction_step("settle", settle, "sets the content"),
        )

    async def failed(self, tx: Transaction, error: Failed) -> None:
        await tx.execute(
            "UPDATE volume_snapshots SET status = 'error', updated_at = $2 WHERE id = $1 AND status <> 'deleting'",
            self.params["snapshot_id"],
            clock.now(),
        )
        await messages.record_failure(tx, self, messages.CREATE_SNAPSHOT, self.params["snapshot_id"], error)


async def copy(op: Operation) -> dict[str, Any]:
    snapshot = await get_snapshot(op)
    return await content.write(op, content.SNAPSHOT, snapshot, {content.VOLUME: snapshot["volume_id"]})


async def remove_copy(op: Operation) -> None:
    await remove_all_files(op, op.params["snapshot_id"])


async def settle(op: Operation, tx: Transaction) -> None:
    snapshot = await get_snapshot(op, tx)
    written = op.results[COPY]
    metadata = written["image_metadata"]
    await tx.execute(
        "UPDATE volume_snapshots SET data_id = $2, bootable = $3, image_metadata = $4, status = 'available',"
        " progress = 100, updated_at = $5 WHERE id = $1",
        snapshot["id"],
        written["data_id"],
        written["bootable"],
        orjson.dumps(metadata).decode() if metadata else None,
        clock.now(),
    )
