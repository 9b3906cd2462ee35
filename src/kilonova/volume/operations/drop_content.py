"""Drop content that a volume has no more use for, because other content took its place."""

from __future__ import annotations

from kilonova.operations import Operation, Step, begin
from kilonova.store import Transaction
from kilonova.volume.operations.common import LANE, explained, files_of

_SECONDS = 24 * 3600.0


class DropContent(Operation):
    """`params`: `volume_id`, `data_id`."""

    kind = "drop volume content"
    lane = LANE
    action = ""
    background = True

    @staticmethod
    def steps() -> tuple[Step, ...]:
        return (Step("remove content", remove, undo=None, why="nobody needs it", deadline=_SECONDS),)


async def begin_drop(tx: Transaction, op: Operation, data_id: str | None) -> None:
    """Have it done once `tx` is committed; for the transaction that gives the operation's volume other content."""
    if data_id is not None:
        params = {"volume_id": op.params["volume_id"], "data_id": data_id}
        await begin(
            tx, DropContent, params=params, project_id=op.project_id, user_id=op.user_id, request_id=op.request_id
        )


async def remove(op: Operation) -> None:
    files = files_of(op)
    async with explained(op):
        await files.remove(files.volume(op.params["volume_id"], op.params["data_id"]))
