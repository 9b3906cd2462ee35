"""What pausing, suspending and their opposites share: a command to the host, which another one undoes, and a state."""

from __future__ import annotations

from typing import ClassVar

from kilonova.compute.operations import leftovers, silence
from kilonova.compute.operations.common import Harmless, server_of
from kilonova.compute.servers import model, states
from kilonova.hosts.messages import Pause, Resume, Suspend, Unpause
from kilonova.operations import Step
from kilonova.store import Transaction

Verb = type[Pause] | type[Unpause] | type[Suspend] | type[Resume]


class Halting(Harmless):
    """`verb` does it and `opposite` undoes it; `after` is what the server is then, and its power."""

    verb: ClassVar[Verb]
    opposite: ClassVar[Verb]
    after: ClassVar[tuple[str, int]]


def steps(name: str, *, deadline: float) -> tuple[Step, ...]:
    async def forward(op: Halting) -> None:
        server = await server_of(op)
        await silence.demand(op, server["host"], name, op.verb(guest_id=server["id"]))

    async def back(op: Halting) -> None:
        server = await server_of(op)
        ran = op.after[1] != states.RUNNING
        await leftovers.reverse(op, server["host"], f"undo {name}", op.opposite, running=ran)

    return (
        Step(name, forward, undo=back, deadline=deadline),
        Step("settle", settle, undo=None, why="one transaction: the state", deadline=30, transaction=True),
    )


async def settle(op: Halting, tx: Transaction) -> None:
    await model.settle(tx, str(op.server_id), *op.after)
