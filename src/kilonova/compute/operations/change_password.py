"""Change the administrator's password, through the guest agent."""

from __future__ import annotations

from msgspec import Struct

from kilonova.compute import operation_kinds as kinds
from kilonova.compute.host_calls import call
from kilonova.compute.operations.steps.server import Harmless, host_of, remove_params
from kilonova.compute.servers import model
from kilonova.hosts.messages.verbs import SetPassword
from kilonova.operations import Entry, Failed, Operation, Step, transaction_step
from kilonova.store import Transaction

STEP = "set password"
PASSWORD = "password"


class ChangePasswordParams(Struct, frozen=True):
    """`password` is deleted at the end."""

    password: str = ""


class ChangePassword(Harmless[ChangePasswordParams]):
    kind = kinds.CHANGE_PASSWORD
    action = "changePassword"
    task_state = "updating_password"

    @staticmethod
    def steps() -> tuple[Entry[ChangePassword], ...]:
        return (
            Step(STEP, forward, undo=None, why="the former password is unknown", deadline=120),
            transaction_step("settle", settle, "deletes the password"),
        )

    async def failed(self, tx: Transaction, error: Failed) -> None:
        await super().failed(tx, error)
        await remove_params(self, tx, PASSWORD)


async def forward(op: ChangePassword) -> None:
    verb = SetPassword(guest_id=str(op.server_id), password=op.params.password)
    await call(op, await host_of(op), STEP, verb)


async def settle(op: Operation, tx: Transaction) -> None:
    await model.clear_fault(tx, str(op.server_id))
    await remove_params(op, tx, PASSWORD)
