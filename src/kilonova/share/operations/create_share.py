"""Create a share: its directory."""

from __future__ import annotations

import asyncio

from msgspec import Struct

from kilonova.operations import Entry, Failed, Operation, Step, StepResult, TransientError, transaction_step
from kilonova.share import operation_kinds as kinds
from kilonova.share.files import NoSpace, ShareFiles
from kilonova.share.shares import model
from kilonova.store import Transaction

MAKE = StepResult("make directory", str)


class ShareParams(Struct, frozen=True):
    share_id: str


class CreateShare(Operation[ShareParams]):
    """The share's row exists, in the status `creating`."""

    kind = kinds.CREATE_SHARE
    action = ""

    @staticmethod
    def steps() -> tuple[Entry[CreateShare], ...]:
        return (
            Step(MAKE, make, undo=unmake, deadline=300),
            transaction_step("settle", settle, "sets the export location"),
        )

    async def failed(self, tx: Transaction, error: Failed) -> None:
        await model.set_status(tx, self.params.share_id, model.ERROR, before=model.CREATING)


async def make(op: CreateShare) -> str:
    """Create the directory. The worker that creates it names its machine."""
    files = ShareFiles.of(op.services.config)
    share = await model.get(op.db, op.params.share_id)
    if share is None or share.status == model.DELETING:
        raise Failed(f"Share {op.params.share_id} was deleted meanwhile.")
    try:
        await asyncio.to_thread(files.create, share.id)
    except NoSpace as error:
        raise Failed(str(error)) from error
    except OSError as error:
        raise TransientError(f"the directory could not be created: {error.strerror}") from error
    return files.export_path(share.id)


async def unmake(op: CreateShare) -> None:
    await ShareFiles.of(op.services.config).remove(op.params.share_id)


async def settle(op: CreateShare, tx: Transaction) -> None:
    if not await model.set_available(tx, op.params.share_id, op.result(MAKE)):
        # A forced deletion may have looked for the directory before it existed. The undo removes it.
        raise Failed(f"Share {op.params.share_id} was deleted meanwhile.")
