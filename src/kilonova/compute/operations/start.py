"""Start: a stopped server runs again."""

from __future__ import annotations

from kilonova.compute.operations import leftovers, silence
from kilonova.compute.operations.common import server_of
from kilonova.compute.servers import model, states
from kilonova.hosts.messages import PowerOn
from kilonova.operations import Operation, Step
from kilonova.store import Transaction


class Start(Operation):
    kind = "start"
    action = "start"
    task_state = "powering-on"

    @staticmethod
    def steps() -> tuple[Step, ...]:
        return (
            Step("power on", forward, undo=back, deadline=300),
            Step("settle", settle, undo=None, why="one transaction: the state", deadline=30, transaction=True),
        )


async def forward(op: Operation) -> None:
    server = await server_of(op)
    await silence.demand(op, server["host"], "power on", PowerOn(guest_id=server["id"]))


async def back(op: Operation) -> None:
    server = await server_of(op)
    await leftovers.restore(op, server["host"], "undo power on", running=False)


async def settle(op: Operation, tx: Transaction) -> None:
    await model.settle(tx, str(op.server_id), states.ACTIVE, states.RUNNING)
