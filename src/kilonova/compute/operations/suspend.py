"""Pause, unpause, suspend and resume a server: one host command, its opposite as undo, and the new state."""

from __future__ import annotations

from typing import ClassVar

from kilonova.compute.operations.steps import cleanup, hosts
from kilonova.compute.operations.steps.server import Harmless, server_of
from kilonova.compute.servers import model, states
from kilonova.hosts.messages import verbs
from kilonova.operations import Step, transaction_step
from kilonova.store import Transaction

Verb = type[verbs.Pause] | type[verbs.Unpause] | type[verbs.Suspend] | type[verbs.Resume]


class _PowerState(Harmless):
    """`verb` is the host command and `opposite` its undo; `after` is the new state and power state."""

    verb: ClassVar[Verb]
    opposite: ClassVar[Verb]
    after: ClassVar[tuple[str, int]]


def _steps(name: str, *, deadline: float) -> tuple[Step, ...]:
    async def forward(op: _PowerState) -> None:
        server = await server_of(op)
        await hosts.call_or_fail(op, server["host"], name, op.verb(guest_id=server["id"]))

    async def back(op: _PowerState) -> None:
        server = await server_of(op)
        ran = op.after[1] != states.RUNNING
        await cleanup.reverse(op, server["host"], f"undo {name}", op.opposite, running=ran)

    return (
        Step(name, forward, undo=back, deadline=deadline),
        transaction_step("settle", settle, "the state"),
    )


async def settle(op: _PowerState, tx: Transaction) -> None:
    await model.settle(tx, str(op.server_id), *op.after)


class Pause(_PowerState):
    kind = "pause"
    action = "pause"
    task_state = "pausing"
    verb, opposite = verbs.Pause, verbs.Unpause
    after = states.PAUSED, states.HALTED
    steps = _steps("pause guest", deadline=300)


class Unpause(_PowerState):
    kind = "unpause"
    action = "unpause"
    task_state = "unpausing"
    verb, opposite = verbs.Unpause, verbs.Pause
    after = states.ACTIVE, states.RUNNING
    steps = _steps("unpause guest", deadline=300)


class Suspend(_PowerState):
    kind = "suspend"
    action = "suspend"
    task_state = "suspending"
    verb, opposite = verbs.Suspend, verbs.Resume
    after = states.SUSPENDED, states.SAVED
    steps = _steps("suspend guest", deadline=1800)


class Resume(_PowerState):
    kind = "resume"
    action = "resume"
    task_state = "resuming"
    verb, opposite = verbs.Resume, verbs.Suspend
    after = states.ACTIVE, states.RUNNING
    steps = _steps("resume guest", deadline=1800)
