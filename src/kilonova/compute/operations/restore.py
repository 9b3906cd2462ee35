"""Restore: a server that was deleted, and not reclaimed yet, runs again."""

from __future__ import annotations

from kilonova.compute.operations import leftovers, silence
from kilonova.compute.operations.common import Harmless, server_of
from kilonova.compute.servers import model, states
from kilonova.hosts.messages import PowerOn, Unrescue
from kilonova.operations import Operation, Step
from kilonova.store import Transaction

STEP = "start guest"


class Restore(Harmless):
    """`params`: `rescued`, whether the guest is to run from its own disk again."""

    kind = "restore"
    action = "restore"
    task_state = "restoring"

    @staticmethod
    def steps() -> tuple[Step, ...]:
        return (
            Step(STEP, forward, undo=back, deadline=300),
            Step("settle", settle, undo=None, why="one transaction: the state", deadline=30, transaction=True),
        )


async def forward(op: Operation) -> None:
    server = await server_of(op)
    verb = Unrescue if op.params.get("rescued") else PowerOn
    await silence.demand(op, server["host"], STEP, verb(guest_id=server["id"]))


async def back(op: Operation) -> None:
    server = await server_of(op)
    await leftovers.restore(op, server["host"], f"undo {STEP}", running=False)


async def settle(op: Operation, tx: Transaction) -> None:
    await model.settle(tx, str(op.server_id), states.ACTIVE, states.RUNNING)
    await tx.execute("UPDATE servers SET soft_deleted_at = NULL WHERE id = $1", op.server_id)
