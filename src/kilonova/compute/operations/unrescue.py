"""Unrescue a server: boot it from its own disk again."""

from __future__ import annotations

from kilonova.compute import operation_kinds as kinds
from kilonova.compute.host_calls import call
from kilonova.compute.operations.steps.server import Harmless, server_of
from kilonova.compute.servers import model, states
from kilonova.hosts.messages.verbs import Unrescue as UnrescueGuest
from kilonova.operations import Entry, Step, transaction_step
from kilonova.store import Transaction

STEP = "unrescue guest"


class Unrescue(Harmless):
    kind = kinds.UNRESCUE
    action = "unrescue"
    task_state = "unrescuing"

    @staticmethod
    def steps() -> tuple[Entry[Unrescue], ...]:
        why = "the rescue disk is removed; a repeated command succeeds"
        return (
            Step(STEP, forward, undo=None, why=why, deadline=300),
            transaction_step("settle", settle, "the state"),
        )


async def forward(op: Unrescue) -> None:
    server = await server_of(op)
    await call(op, server.host_name, STEP, UnrescueGuest(guest_id=server.id))


async def settle(op: Unrescue, tx: Transaction) -> None:
    await model.settle(tx, str(op.server_id), "unrescue", states.ACTIVE, states.RUNNING)
