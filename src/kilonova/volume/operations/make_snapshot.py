"""Make a snapshot of a volume: its content is copied as it is at that time."""

from __future__ import annotations

from typing import Any

import orjson

from kilonova import clock
from kilonova.operations import Failed, Operation, Step
from kilonova.store import Transaction
from kilonova.volume.messages import model as messages
from kilonova.volume.operations import content
from kilonova.volume.operations.common import COPY_SECONDS, LANE, clear_all, snapshot_of

COPY = "copy content"


class MakeSnapshot(Operation):
    """`params`: `snapshot_id`. The snapshot's row is there, in the status `creating`."""

    kind = "make volume snapshot"
    lane = LANE
    action = ""

    @staticmethod
    def steps() -> tuple[Step, ...]:
        return (
            Step(COPY, copy, undo=remove, deadline=COPY_SECONDS),
            Step("settle", settle, undo=None, why="one transaction: what it is", deadline=30, transaction=True),
        )

    async def failed(self, tx: Transaction, error: Failed) -> None:
        await tx.execute(
            "UPDATE volume_snapshots SET status = 'error', updated_at = $2 WHERE id = $1 AND status <> 'deleting'",
            self.params["snapshot_id"],
            clock.now(),
        )
        await messages.tell(tx, self, messages.CREATE_SNAPSHOT, self.params["snapshot_id"], error)


async def copy(op: Operation) -> dict[str, Any]:
    snapshot = await snapshot_of(op)
    return await content.make(op, content.SNAPSHOT, snapshot, {content.VOLUME: snapshot["volume_id"]})


async def remove(op: Operation) -> None:
    await clear_all(op, op.params["snapshot_id"])


async def settle(op: Operation, tx: Transaction) -> None:
    snapshot = await snapshot_of(op, tx)
    made = op.results[COPY]
    known = made["image_metadata"]
    await tx.execute(
        "UPDATE volume_snapshots SET data_id = $2, bootable = $3, image_metadata = $4, status = 'available',"
        " progress = 100, updated_at = $5 WHERE id = $1",
        snapshot["id"],
        made["data_id"],
        made["bootable"],
        orjson.dumps(known).decode() if known else None,
        clock.now(),
    )
