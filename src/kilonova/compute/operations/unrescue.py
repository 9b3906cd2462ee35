"""Unrescue a server: boot it from its own disk again."""

from __future__ import annotations

from kilonova.compute.operations.steps import hosts
from kilonova.compute.operations.steps.server import Harmless, server_of
from kilonova.compute.servers import model, states
from kilonova.hosts.messages.verbs import Unrescue as UnrescueGuest
from kilonova.operations import Operation, Step, transaction_step
from kilonova.store import Transaction

STEP = "unrescue guest"


class Unrescue(Harmless):
    kind = "unrescue"
    action = "unrescue"
    task_state = "unrescuing"

    @staticmethod
    def steps() -> tuple[Step, ...]:
        why = "the rescue disk is removed; a repeated command succeeds"
        return (
            Step(STEP, forward, undo=None, why=why, deadline=300),
            transaction_step("settle", settle, "the state"),
        )


async def forward(op: Operation) -> None:
    server = await server_of(op)
    await hosts.call_or_fail(op, server["host"], STEP, UnrescueGuest(guest_id=server["id"]))


async def settle(op: Operation, tx: Transaction) -> None:
    await model.settle(tx, str(op.server_id), states.ACTIVE, states.RUNNING)
