"""Re-image a volume: an image takes the place of all that it held. Until that is whole the volume has what it had."""

from __future__ import annotations

from typing import Any

from kilonova.operations import Failed, Operation, Step
from kilonova.store import Transaction
from kilonova.volume.messages import model as messages
from kilonova.volume.operations import replacing
from kilonova.volume.operations.common import COPY_SECONDS, LANE, volume_of
from kilonova.volume.operations.replacing import WRITE
from kilonova.volume.operations.tell_compute import REIMAGED, begin_telling
from kilonova.volume.volumes import model

ACTION = "os-reimage"


class ReimageVolume(Operation):
    """`params`: `volume_id`, `image_id`. The volume is in the status `downloading`."""

    kind = "reimage volume"
    lane = LANE
    action = ""

    @staticmethod
    def steps() -> tuple[Step, ...]:
        return (
            Step(WRITE, write, undo=replacing.remove, deadline=COPY_SECONDS),
            Step(
                "settle",
                settle,
                undo=None,
                why="one transaction: the content and the status, and the order to tell compute",
                deadline=30,
                transaction=True,
            ),
        )

    async def failed(self, tx: Transaction, error: Failed) -> None:
        await model.leave(tx, self.params["volume_id"], ACTION, ok=False)
        await messages.tell(tx, self, messages.REIMAGE, self.params["volume_id"], error)
        await begin_telling(tx, self, REIMAGED, ok=False)


async def write(op: Operation) -> dict[str, Any]:
    return await replacing.write(op, await volume_of(op), {"image": op.params["image_id"]})


async def settle(op: Operation, tx: Transaction) -> None:
    await replacing.take(op, tx)
    await model.leave(tx, op.params["volume_id"], ACTION)
    await begin_telling(tx, op, REIMAGED)
