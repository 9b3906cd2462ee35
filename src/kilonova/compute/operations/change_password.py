"""Change the password: the agent in a server's guest sets that of its administrator."""

from __future__ import annotations

from kilonova.compute.operations import silence
from kilonova.compute.operations.common import Harmless, forget, server_of
from kilonova.hosts.messages import SetPassword
from kilonova.operations import Failed, Operation, Step
from kilonova.store import Transaction

STEP = "set password"
PASSWORD = "password"


class ChangePassword(Harmless):
    """`params`: `password`, which is forgotten at the end."""

    kind = "change password"
    action = "changePassword"
    task_state = "updating_password"

    @staticmethod
    def steps() -> tuple[Step, ...]:
        return (
            Step(STEP, forward, undo=None, why="nobody knows the password before", deadline=120),
            Step("settle", settle, undo=None, why="one transaction: what is forgotten", deadline=30, transaction=True),
        )

    async def failed(self, tx: Transaction, error: Failed) -> None:
        await super().failed(tx, error)
        await forget(self, tx, PASSWORD)


async def forward(op: Operation) -> None:
    server = await server_of(op)
    verb = SetPassword(guest_id=server["id"], password=op.params[PASSWORD])
    await silence.demand(op, server["host"], STEP, verb)


async def settle(op: Operation, tx: Transaction) -> None:
    await tx.execute("UPDATE servers SET fault = NULL WHERE id = $1", op.server_id)
    await forget(op, tx, PASSWORD)
