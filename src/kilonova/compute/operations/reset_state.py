"""Reset a server's state, after its unfinished operation is undone."""

from __future__ import annotations

from kilonova import clock
from kilonova.operations import Operation, Step, transaction_step
from kilonova.store import Transaction


class ResetState(Operation):
    """`params`: `state`."""

    kind = "reset_state"
    action = "resetState"
    blocks_requests = False

    @staticmethod
    def steps() -> tuple[Step, ...]:
        return (transaction_step("settle", settle, "the state"),)


async def settle(op: Operation, tx: Transaction) -> None:
    await write(tx, str(op.server_id), op.params["state"])


async def write(tx: Transaction, server_id: str, state: str) -> None:
    """Set the state. The power state is not changed."""
    sql = "UPDATE servers SET vm_state = $2, fault = NULL, updated_at = $3 WHERE id = $1 AND NOT deleted"
    await tx.execute(sql, server_id, state, clock.now())
