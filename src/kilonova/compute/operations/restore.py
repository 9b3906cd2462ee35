"""Restore a soft-deleted server."""

from __future__ import annotations

from msgspec import Struct

from kilonova.compute import operation_kinds as kinds
from kilonova.compute.host_calls import call
from kilonova.compute.operations.steps import cleanup
from kilonova.compute.operations.steps.server import Harmless, host_of
from kilonova.compute.servers import model
from kilonova.hosts.messages.verbs import PowerOn, Unrescue
from kilonova.operations import Entry, Operation, Step, transaction_step
from kilonova.store import Transaction

STEP = "start guest"


class RestoreParams(Struct, frozen=True):
    """`rescued`: whether the server was in rescue before."""

    rescued: bool = False


class Restore(Harmless[RestoreParams]):
    kind = kinds.RESTORE
    action = "restore"
    task_state = "restoring"

    @staticmethod
    def steps() -> tuple[Entry[Restore], ...]:
        return (
            Step(STEP, forward, undo=back, deadline=300),
            transaction_step("settle", settle, "the state"),
        )


async def forward(op: Restore) -> None:
    verb = Unrescue if op.params.rescued else PowerOn
    await call(op, await host_of(op), STEP, verb(guest_id=str(op.server_id)))


async def back(op: Operation) -> None:
    await cleanup.restore(op, await host_of(op), f"undo {STEP}", running=False)


async def settle(op: Operation, tx: Transaction) -> None:
    await model.restore(tx, str(op.server_id))
