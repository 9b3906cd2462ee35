"""Unpause: a paused server goes on where it was."""

from __future__ import annotations

from kilonova.compute.operations import leftovers, silence
from kilonova.compute.operations.common import Harmless, server_of
from kilonova.compute.servers import model, states
from kilonova.hosts.messages import Pause
from kilonova.hosts.messages import Unpause as UnpauseGuest
from kilonova.operations import Operation, Step
from kilonova.store import Transaction

STEP = "unpause guest"


class Unpause(Harmless):
    kind = "unpause"
    action = "unpause"
    task_state = "unpausing"

    @staticmethod
    def steps() -> tuple[Step, ...]:
        return (
            Step(STEP, forward, undo=back, deadline=300),
            Step("settle", settle, undo=None, why="one transaction: the state", deadline=30, transaction=True),
        )


async def forward(op: Operation) -> None:
    server = await server_of(op)
    await silence.demand(op, server["host"], STEP, UnpauseGuest(guest_id=server["id"]))


async def back(op: Operation) -> None:
    server = await server_of(op)
    await leftovers.reverse(op, server["host"], f"undo {STEP}", Pause, running=False)


async def settle(op: Operation, tx: Transaction) -> None:
    await model.settle(tx, str(op.server_id), states.ACTIVE, states.RUNNING)
