"""Restore a soft-deleted server."""

from __future__ import annotations

from kilonova.compute.operations.steps import cleanup, hosts
from kilonova.compute.operations.steps.server import Harmless, server_of
from kilonova.compute.servers import model, states
from kilonova.hosts.messages.verbs import PowerOn, Unrescue
from kilonova.operations import Operation, Step, transaction_step
from kilonova.store import Transaction

STEP = "start guest"


class Restore(Harmless):
    """`params`: `rescued`, whether the server was in rescue before."""

    kind = "restore"
    action = "restore"
    task_state = "restoring"

    @staticmethod
    def steps() -> tuple[Step, ...]:
        return (
            Step(STEP, forward, undo=back, deadline=300),
            transaction_step("settle", settle, "the state"),
        )


async def forward(op: Operation) -> None:
    server = await server_of(op)
    verb = Unrescue if op.params.get("rescued") else PowerOn
    await hosts.call_or_fail(op, server["host"], STEP, verb(guest_id=server["id"]))


async def back(op: Operation) -> None:
    server = await server_of(op)
    await cleanup.restore(op, server["host"], f"undo {STEP}", running=False)


async def settle(op: Operation, tx: Transaction) -> None:
    await model.settle(tx, str(op.server_id), states.ACTIVE, states.RUNNING)
    await tx.execute("UPDATE servers SET soft_deleted_at = NULL WHERE id = $1", op.server_id)
