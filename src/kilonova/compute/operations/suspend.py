"""Suspend: a server's memory is written to its host's disk, and it stands still."""

from __future__ import annotations

from kilonova.compute.operations import leftovers, silence
from kilonova.compute.operations.common import Harmless, server_of
from kilonova.compute.servers import model, states
from kilonova.hosts.messages import Resume
from kilonova.hosts.messages import Suspend as SuspendGuest
from kilonova.operations import Operation, Step
from kilonova.store import Transaction

STEP = "suspend guest"


class Suspend(Harmless):
    kind = "suspend"
    action = "suspend"
    task_state = "suspending"

    @staticmethod
    def steps() -> tuple[Step, ...]:
        return (
            Step(STEP, forward, undo=back, deadline=1800),
            Step("settle", settle, undo=None, why="one transaction: the state", deadline=30, transaction=True),
        )


async def forward(op: Operation) -> None:
    server = await server_of(op)
    await silence.demand(op, server["host"], STEP, SuspendGuest(guest_id=server["id"]))


async def back(op: Operation) -> None:
    server = await server_of(op)
    await leftovers.reverse(op, server["host"], f"undo {STEP}", Resume, running=True)


async def settle(op: Operation, tx: Transaction) -> None:
    await model.settle(tx, str(op.server_id), states.SUSPENDED, states.SAVED)
