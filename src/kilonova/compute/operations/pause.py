"""Pause: a server's processors stand still, and everything stays in its memory."""

from __future__ import annotations

from kilonova.compute.operations import leftovers, silence
from kilonova.compute.operations.common import Harmless, server_of
from kilonova.compute.servers import model, states
from kilonova.hosts.messages import Pause as PauseGuest
from kilonova.hosts.messages import Unpause
from kilonova.operations import Operation, Step
from kilonova.store import Transaction

STEP = "pause guest"


class Pause(Harmless):
    kind = "pause"
    action = "pause"
    task_state = "pausing"

    @staticmethod
    def steps() -> tuple[Step, ...]:
        return (
            Step(STEP, forward, undo=back, deadline=300),
            Step("settle", settle, undo=None, why="one transaction: the state", deadline=30, transaction=True),
        )


async def forward(op: Operation) -> None:
    server = await server_of(op)
    await silence.demand(op, server["host"], STEP, PauseGuest(guest_id=server["id"]))


async def back(op: Operation) -> None:
    server = await server_of(op)
    await leftovers.reverse(op, server["host"], f"undo {STEP}", Unpause, running=True)


async def settle(op: Operation, tx: Transaction) -> None:
    await model.settle(tx, str(op.server_id), states.PAUSED, states.HALTED)
