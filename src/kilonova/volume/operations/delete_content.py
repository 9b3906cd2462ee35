"""Delete content that was replaced by other content."""

from __future__ import annotations

from msgspec import Struct

from kilonova.operations import Entry, Operation, Step, begin
from kilonova.store import Transaction
from kilonova.volume import operation_kinds as kinds
from kilonova.volume.operations.common import LANE, NamesVolume, translate_errors, volume_files

_DEADLINE_SECONDS = 24 * 3600.0


class DeleteContentParams(Struct, frozen=True):
    volume_id: str
    data_id: str


class DeleteContent(Operation[DeleteContentParams]):
    kind = kinds.DELETE_VOLUME_CONTENT
    lane = LANE
    action = ""
    background = True

    @staticmethod
    def steps() -> tuple[Entry[DeleteContent], ...]:
        return (Step("remove content", remove, undo=None, why="the content is unused", deadline=_DEADLINE_SECONDS),)


async def begin_delete(tx: Transaction, op: Operation[NamesVolume], data_id: str | None) -> None:
    """Begin the deletion in the transaction that gives the operation's volume other content."""
    if data_id is not None:
        params = DeleteContentParams(op.params.volume_id, data_id)
        await begin(
            tx, DeleteContent, params=params, project_id=op.project_id, user_id=op.user_id, request_id=op.request_id
        )


async def remove(op: DeleteContent) -> None:
    files = volume_files(op)
    async with translate_errors(op):
        await files.remove(files.volume(op.params.volume_id, op.params.data_id))
