"""Stop: a running server is switched off and keeps its place."""

from __future__ import annotations

from kilonova.compute.operations import stopping
from kilonova.compute.operations.common import server_of
from kilonova.compute.servers import model, states
from kilonova.operations import Operation, Step
from kilonova.store import Transaction

POWER_OFF = "power off"


class Stop(Operation):
    """`params`: `grace`, the seconds that its image gives the guest's system, if it does."""

    kind = "stop"
    action = "stop"
    task_state = "powering-off"

    @staticmethod
    def steps() -> tuple[Step, ...]:
        return (
            Step(POWER_OFF, forward, undo=back, deadline=stopping.deadline),
            Step("settle", settle, undo=None, why="one transaction: the state", deadline=30, transaction=True),
        )


async def forward(op: Operation) -> None:
    await stopping.stop(op, await server_of(op), POWER_OFF)


async def back(op: Operation) -> None:
    await stopping.start_again(op, POWER_OFF)


async def settle(op: Operation, tx: Transaction) -> None:
    await model.settle(tx, str(op.server_id), states.STOPPED, states.SHUTDOWN)
