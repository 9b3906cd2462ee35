"""Start, stop and reboot a server."""

from __future__ import annotations

from kilonova.compute.operations.steps import cleanup, hosts, power
from kilonova.compute.operations.steps.server import server_of
from kilonova.compute.servers import model, states
from kilonova.hosts.messages.verbs import PowerOn
from kilonova.hosts.messages.verbs import Reboot as RebootGuest
from kilonova.operations import Operation, Step, transaction_step
from kilonova.store import Transaction

POWER_OFF = "power off"


class Start(Operation):
    kind = "start"
    action = "start"
    task_state = "powering-on"

    @staticmethod
    def steps() -> tuple[Step, ...]:
        return (
            Step("power on", power_on, undo=power_off_again, deadline=300),
            transaction_step("settle", settle_running, "the state"),
        )


async def power_on(op: Operation) -> None:
    server = await server_of(op)
    await hosts.call_or_fail(op, server["host"], "power on", PowerOn(guest_id=server["id"]))


async def power_off_again(op: Operation) -> None:
    server = await server_of(op)
    await cleanup.restore(op, server["host"], "undo power on", running=False)


async def settle_running(op: Operation, tx: Transaction) -> None:
    await model.settle(tx, str(op.server_id), states.ACTIVE, states.RUNNING)


class Stop(Operation):
    """`params`: `grace`, the seconds that its image gives the guest's system, if it does."""

    kind = "stop"
    action = "stop"
    task_state = "powering-off"

    @staticmethod
    def steps() -> tuple[Step, ...]:
        return (
            Step(POWER_OFF, power_off, undo=power_on_again, deadline=power.stop_deadline),
            transaction_step("settle", settle_stopped, "the state"),
        )


async def power_off(op: Operation) -> None:
    await power.stop(op, await server_of(op), POWER_OFF)


async def power_on_again(op: Operation) -> None:
    await power.start_again(op, POWER_OFF)


async def settle_stopped(op: Operation, tx: Transaction) -> None:
    await model.settle(tx, str(op.server_id), states.STOPPED, states.SHUTDOWN)


def _reboot_steps() -> tuple[Step, ...]:
    return (
        Step(
            "reboot guest", reboot, undo=None, why="a reboot leaves nothing to take back", deadline=power.stop_deadline
        ),
        transaction_step("settle", settle_running, "the state"),
    )


class Reboot(Operation):
    kind = "reboot"
    action = "reboot"
    task_state = "rebooting"
    hard = False
    steps = staticmethod(_reboot_steps)


class HardReboot(Operation):
    kind = "hard_reboot"
    action = "reboot"
    task_state = "rebooting_hard"
    hard = True
    steps = staticmethod(_reboot_steps)


async def reboot(op: Reboot | HardReboot) -> None:
    server = await server_of(op)
    takes = 0.0 if op.hard else power.shutdown_seconds(op)
    verb = RebootGuest(guest_id=server["id"], hard=op.hard)
    await hosts.call_or_fail(op, server["host"], "reboot guest", verb, takes=takes)
