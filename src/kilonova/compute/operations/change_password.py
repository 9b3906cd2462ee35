"""Change the administrator's password, through the guest agent."""

from __future__ import annotations

from kilonova.compute.operations.steps import hosts
from kilonova.compute.operations.steps.server import Harmless, remove_params, server_of
from kilonova.hosts.messages.verbs import SetPassword
from kilonova.operations import Failed, Operation, Step, transaction_step
from kilonova.store import Transaction

STEP = "set password"
PASSWORD = "password"


class ChangePassword(Harmless):
    """`params`: `password`, which is deleted at the end."""

    kind = "change_password"
    action = "changePassword"
    task_state = "updating_password"

    @staticmethod
    def steps() -> tuple[Step, ...]:
        return (
            Step(STEP, forward, undo=None, why="the former password is unknown", deadline=120),
            transaction_step("settle", settle, "deletes the password"),
        )

    async def failed(self, tx: Transaction, error: Failed) -> None:
        await super().failed(tx, error)
        await remove_params(self, tx, PASSWORD)


async def forward(op: Operation) -> None:
    server = await server_of(op)
    verb = SetPassword(guest_id=server["id"], password=op.params[PASSWORD])
    await hosts.call_or_fail(op, server["host"], STEP, verb)


async def settle(op: Operation, tx: Transaction) -> None:
    await tx.execute("UPDATE servers SET fault = NULL WHERE id = $1", op.server_id)
    await remove_params(op, tx, PASSWORD)
