"""Unrescue: a server in rescue runs from its own disk again."""

from __future__ import annotations

from kilonova.compute.operations import silence
from kilonova.compute.operations.common import Harmless, server_of
from kilonova.compute.servers import model, states
from kilonova.hosts.messages import Unrescue as UnrescueGuest
from kilonova.operations import Operation, Step
from kilonova.store import Transaction

STEP = "unrescue guest"


class Unrescue(Harmless):
    kind = "unrescue"
    action = "unrescue"
    task_state = "unrescuing"

    @staticmethod
    def steps() -> tuple[Step, ...]:
        why = "the rescue disk is gone; whoever asks again finds it done"
        return (
            Step(STEP, forward, undo=None, why=why, deadline=300),
            Step("settle", settle, undo=None, why="one transaction: the state", deadline=30, transaction=True),
        )


async def forward(op: Operation) -> None:
    server = await server_of(op)
    await silence.demand(op, server["host"], STEP, UnrescueGuest(guest_id=server["id"]))


async def settle(op: Operation, tx: Transaction) -> None:
    await model.settle(tx, str(op.server_id), states.ACTIVE, states.RUNNING)
