"""Stop: a running server is switched off and keeps its place."""

from __future__ import annotations

from kilonova.compute.operations import leftovers, silence
from kilonova.compute.operations.common import server_of
from kilonova.compute.servers import model, states
from kilonova.hosts.messages import PowerOff
from kilonova.operations import Operation, Step
from kilonova.store import Transaction


class Stop(Operation):
    kind = "stop"
    action = "stop"
    task_state = "powering-off"

    @staticmethod
    def steps() -> tuple[Step, ...]:
        return (
            Step("power off", forward, undo=back, deadline=300),
            Step("settle", settle, undo=None, why="one transaction: the state", deadline=30, transaction=True),
        )


async def forward(op: Operation) -> None:
    server = await server_of(op)
    await silence.demand(op, server["host"], "power off", PowerOff(guest_id=server["id"]))


async def back(op: Operation) -> None:
    server = await server_of(op)
    await leftovers.restore(op, server["host"], "undo power off", running=True)


async def settle(op: Operation, tx: Transaction) -> None:
    await model.settle(tx, str(op.server_id), states.STOPPED, states.SHUTDOWN)
