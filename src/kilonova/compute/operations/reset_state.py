"""Reset the state: an operator's word on what a server is stands after what was going on has been undone."""

from __future__ import annotations

from kilonova import clock
from kilonova.operations import Operation, Step
from kilonova.store import Transaction


class ResetState(Operation):
    """`params`: `state`."""

    kind = "reset state"
    action = "resetState"
    beside = True

    @staticmethod
    def steps() -> tuple[Step, ...]:
        return (Step("settle", settle, undo=None, why="one transaction: the state", deadline=30, transaction=True),)


async def settle(op: Operation, tx: Transaction) -> None:
    await write(tx, str(op.server_id), op.params["state"])


async def write(tx: Transaction, server_id: str, state: str) -> None:
    """What power its guest has is not for anybody to say."""
    sql = "UPDATE servers SET vm_state = $2, fault = NULL, updated_at = $3 WHERE id = $1 AND NOT deleted"
    await tx.execute(sql, server_id, state, clock.now())
