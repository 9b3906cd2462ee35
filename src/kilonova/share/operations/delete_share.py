"""Delete a share: first its directory, then its row."""

from __future__ import annotations

from kilonova.operations import Entry, Failed, Operation, Step, TransientError, transaction_step
from kilonova.share import operation_kinds as kinds
from kilonova.share.files import ShareFiles
from kilonova.share.operations.create_share import ShareParams
from kilonova.share.shares import model
from kilonova.store import Transaction

_DEADLINE_SECONDS = 24 * 3600.0


class DeleteShare(Operation[ShareParams]):
    """The share has the status `deleting`."""

    kind = kinds.DELETE_SHARE
    action = ""

    @staticmethod
    def steps() -> tuple[Entry[DeleteShare], ...]:
        return (
            Step(
                "remove directory",
                remove,
                undo=None,
                why="deleted content cannot be restored",
                deadline=_DEADLINE_SECONDS,
            ),
            transaction_step("settle", settle, "deletes the row"),
        )

    async def failed(self, tx: Transaction, error: Failed) -> None:
        await model.set_status(tx, self.params.share_id, model.ERROR_DELETING, before=model.DELETING)


async def remove(op: DeleteShare) -> None:
    try:
        await ShareFiles.of(op.services.config).remove(op.params.share_id)
    except OSError as error:
        raise TransientError(f"the directory could not be removed: {error.strerror}") from error


async def settle(op: DeleteShare, tx: Transaction) -> None:
    await model.delete_row(tx, op.params.share_id)
