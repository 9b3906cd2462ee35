"""Extend a volume, also one that servers have: they are told, and their guests see it grow."""

from __future__ import annotations

from pathlib import Path

from kilonova.operations import Failed, Operation, Step
from kilonova.store import Row, Transaction
from kilonova.volume.files import GIB, in_thread, resize
from kilonova.volume.messages import model as messages
from kilonova.volume.operations.common import COPY_SECONDS, LANE, apart, explained, files_of, volume_of
from kilonova.volume.operations.tell_compute import EXTENDED, begin_telling
from kilonova.volume.volumes import model

ACTION = "os-extend"


class ExtendVolume(Operation):
    """`params`: `volume_id`, `before` and `size` in GiB. The row has the new size already, as quotas count it."""

    kind = "extend volume"
    lane = LANE
    action = ""

    @staticmethod
    def steps() -> tuple[Step, ...]:
        return (
            # As long as a copy of it is being made.
            Step("grow content", grow, undo=shrink, deadline=COPY_SECONDS),
            Step(
                "settle",
                settle,
                undo=None,
                why="one transaction: the status, and the order to tell compute",
                deadline=30,
                transaction=True,
            ),
        )

    async def failed(self, tx: Transaction, error: Failed) -> None:
        volume_id = self.params["volume_id"]
        await tx.execute("UPDATE volumes SET size = $2 WHERE id = $1", volume_id, self.params["before"])
        await model.leave(tx, volume_id, ACTION, ok=False)
        await messages.tell(tx, self, messages.EXTEND, volume_id, error)


async def grow(op: Operation) -> None:
    volume = await volume_of(op)
    async with explained(op), apart(op, volume["id"]):
        await in_thread(resize, _content(op, volume), op.params["size"] * GIB)


async def shrink(op: Operation) -> None:
    """Nobody was told that it had grown, so that nobody has written there. One that is gone needs nothing."""
    try:
        volume = await volume_of(op)
        async with apart(op, volume["id"]):
            await in_thread(resize, _content(op, volume), op.params["before"] * GIB)
    except (Failed, FileNotFoundError):
        pass


async def settle(op: Operation, tx: Transaction) -> None:
    await volume_of(op, tx)
    await model.leave(tx, op.params["volume_id"], ACTION)
    await begin_telling(tx, op, EXTENDED)


def _content(op: Operation, volume: Row) -> Path:
    return files_of(op).volume(volume["id"], volume["data_id"])
