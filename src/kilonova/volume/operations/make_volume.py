"""Make a volume: its file is written, blank or from an image, a snapshot or another volume."""

from __future__ import annotations

from typing import Any

from kilonova.operations import Failed, Operation, Step
from kilonova.store import Transaction
from kilonova.volume.messages import model as messages
from kilonova.volume.operations import content, replacing
from kilonova.volume.operations.common import COPY_SECONDS, LANE, volume_of
from kilonova.volume.operations.replacing import WRITE
from kilonova.volume.types import demands
from kilonova.volume.volumes import model, states

ACTION = "create"


class MakeVolume(Operation):
    """`params`: `volume_id`, `source` (see `content.Source`). The volume's row is there, in the status `creating`."""

    kind = "make volume"
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
        act = messages.SCHEDULE if demands.is_unmet(error) else messages.CREATE
        await messages.tell(tx, self, act, self.params["volume_id"], error)


async def write(op: Operation) -> dict[str, Any]:
    volume = await volume_of(op)
    await demands.check(op.db, volume["type_id"])
    source: content.Source = op.params["source"]
    if source and "image" in source:
        async with op.db.transaction() as tx:
            await tx.execute(
                "UPDATE volumes SET status = $2 WHERE id = $1 AND status = $3",
                volume["id"],
                states.DOWNLOADING,
                states.CREATING,
            )
    return await replacing.write(op, volume, source)


async def settle(op: Operation, tx: Transaction) -> None:
    await replacing.take(op, tx)
    await model.leave(tx, op.params["volume_id"], ACTION)
