"""Pause, unpause, suspend and resume a server: one host command, its opposite as undo, and the new state."""

from __future__ import annotations

from typing import ClassVar

from kilonova.compute import operation_kinds as kinds
from kilonova.compute.host_calls import call
from kilonova.compute.operations.steps import cleanup
from kilonova.compute.operations.steps.server import Harmless, host_of
from kilonova.compute.servers import model, states
from kilonova.hosts.messages import verbs
from kilonova.operations import Entry, Step, transaction_step
from kilonova.store import Transaction

Verb = type[verbs.Pause] | type[verbs.Unpause] | type[verbs.Suspend] | type[verbs.Resume]


class _PowerState(Harmless):
    """`verb` is the host command and `opposite` its undo; `after` is the new state and power state."""

    verb: ClassVar[Verb]
    opposite: ClassVar[Verb]
    after: ClassVar[tuple[str, int]]


def _steps(name: str, *, deadline: float) -> tuple[Entry[_PowerState], ...]:
    async def forward(op: _PowerState) -> None:
        await call(op, await host_of(op), name, op.verb(guest_id=str(op.server_id)))

    async def back(op: _PowerState) -> None:
        ran = op.after[1] != states.RUNNING
        await cleanup.reverse(op, await host_of(op), f"undo {name}", op.opposite, running=ran)

    return (
        Step(name, forward, undo=back, deadline=deadline),
        transaction_step("settle", settle, "the state"),
    )


async def settle(op: _PowerState, tx: Transaction) -> None:
    await model.settle(tx, str(op.server_id), op.kind, *op.after)


class Pause(_PowerState):
    kind = kinds.PAUSE
    action = "pause"
    task_state = "pausing"
    verb, opposite = verbs.Pause, verbs.Unpause
    after = states.PAUSED, states.HALTED
    steps = _steps("pause guest", deadline=300)


class Unpause(_PowerState):
    kind = kinds.UNPAUSE
    action = "unpause"
    task_state = "unpausing"
    verb, opposite = verbs.Unpause, verbs.Pause
    after = states.ACTIVE, states.RUNNING
    steps = _steps("unpause guest", deadline=300)


class Suspend(_PowerState):
    kind = kinds.SUSPEND
    action = "suspend"
    task_state = "suspending"
    verb, opposite = verbs.Suspend, verbs.Resume
    after = states.SUSPENDED, states.SAVED
    steps = _steps("suspend guest", deadline=1800)


class Resume(_PowerState):
    kind = kinds.RESUME
    action = "resume"
    task_state = "resuming"
    verb, opposite = verbs.Resume, verbs.Suspend
    after = states.ACTIVE, states.RUNNING
    steps = _steps("resume guest", deadline=1800)
