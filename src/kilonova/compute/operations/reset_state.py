"""Reset a server's state, after its unfinished operation is undone."""

from __future__ import annotations

from msgspec import Struct

from kilonova.compute import operation_kinds as kinds
from kilonova.compute.servers import model
from kilonova.operations import Entry, Operation, transaction_step
from kilonova.store import Transaction


class ResetStateParams(Struct, frozen=True):
    state: str


class ResetState(Operation[ResetStateParams]):
    kind = kinds.RESET_STATE
    action = "resetState"
    blocks_requests = False

    @staticmethod
    def steps() -> tuple[Entry[ResetState], ...]:
        return (transaction_step("settle", settle, "the state"),)


async def settle(op: ResetState, tx: Transaction) -> None:
    await model.reset_state(tx, str(op.server_id), op.params.state)
