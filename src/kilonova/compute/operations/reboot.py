"""Reboot: softly through the guest's system, or by switching the power."""

from __future__ import annotations

from kilonova.compute.operations import silence, stopping
from kilonova.compute.operations.common import server_of
from kilonova.compute.servers import model, states
from kilonova.hosts.messages import Reboot as RebootGuest
from kilonova.operations import Operation, Step
from kilonova.store import Transaction


def _steps() -> tuple[Step, ...]:
    return (
        Step("reboot guest", reboot, undo=None, why="a reboot leaves nothing to take back", deadline=stopping.deadline),
        Step("settle", settle, undo=None, why="one transaction: the state", deadline=30, transaction=True),
    )


class Reboot(Operation):
    kind = "reboot"
    action = "reboot"
    task_state = "rebooting"
    hard = False
    steps = staticmethod(_steps)


class HardReboot(Operation):
    kind = "hard_reboot"
    action = "reboot"
    task_state = "rebooting_hard"
    hard = True
    steps = staticmethod(_steps)


async def reboot(op: Reboot | HardReboot) -> None:
    server = await server_of(op)
    takes = 0.0 if op.hard else stopping.grace(op)
    verb = RebootGuest(guest_id=server["id"], hard=op.hard)
    await silence.demand(op, server["host"], "reboot guest", verb, takes=takes)


async def settle(op: Operation, tx: Transaction) -> None:
    await model.settle(tx, str(op.server_id), states.ACTIVE, states.RUNNING)
