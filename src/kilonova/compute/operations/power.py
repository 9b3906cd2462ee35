"""Start, stop and reboot a server."""

from __future__ import annotations

from typing import ClassVar

from kilonova.compute import operation_kinds as kinds
from kilonova.compute.host_calls import call
from kilonova.compute.operations.steps import cleanup, power
from kilonova.compute.operations.steps.power import StopParams
from kilonova.compute.operations.steps.server import host_of, server_of
from kilonova.compute.servers import model, states
from kilonova.hosts.messages.verbs import PowerOn
from kilonova.hosts.messages.verbs import Reboot as RebootGuest
from kilonova.operations import Entry, Operation, Step, transaction_step
from kilonova.store import Transaction

POWER_ON, POWER_OFF, REBOOT = "power on", "power off", "reboot guest"


class Start(Operation):
    kind = kinds.START
    action = "start"
    task_state = "powering-on"

    @staticmethod
    def steps() -> tuple[Entry[Operation], ...]:
        return (
            Step(POWER_ON, power_on, undo=power_off_again, deadline=300),
            transaction_step("settle", settle_started, "the state"),
        )


async def power_on(op: Operation) -> None:
    await call(op, await host_of(op), POWER_ON, PowerOn(guest_id=str(op.server_id)))


async def power_off_again(op: Operation) -> None:
    await cleanup.restore(op, await host_of(op), f"undo {POWER_ON}", running=False)


async def settle_started(op: Operation, tx: Transaction) -> None:
    await model.settle(tx, str(op.server_id), "os-start", states.ACTIVE, states.RUNNING)


class Stop(Operation[StopParams]):
    kind = kinds.STOP
    action = "stop"
    task_state = "powering-off"

    @staticmethod
    def steps() -> tuple[Entry[Stop], ...]:
        return (
            Step(POWER_OFF, power_off, undo=power_on_again, deadline=power.stop_deadline),
            transaction_step("settle", settle_stopped, "the state"),
        )


async def power_off(op: Stop) -> None:
    await power.stop(op, await server_of(op), POWER_OFF)


async def power_on_again(op: Operation) -> None:
    await power.start_again(op, POWER_OFF)


async def settle_stopped(op: Operation, tx: Transaction) -> None:
    await model.settle(tx, str(op.server_id), "os-stop", states.STOPPED, states.SHUTDOWN)


def _reboot_steps() -> tuple[Entry[_Reboot], ...]:
    return (
        Step(REBOOT, reboot, undo=None, why="a reboot leaves nothing to take back", deadline=power.stop_deadline),
        transaction_step("settle", settle_rebooted, "the state"),
    )


class _Reboot(Operation[StopParams]):
    action = "reboot"
    hard: ClassVar[bool]
    steps = staticmethod(_reboot_steps)


class Reboot(_Reboot):
    kind = kinds.REBOOT
    task_state = "rebooting"
    hard = False


class HardReboot(_Reboot):
    kind = kinds.HARD_REBOOT
    task_state = "rebooting_hard"
    hard = True


async def reboot(op: _Reboot) -> None:
    takes = 0.0 if op.hard else power.shutdown_seconds(op)
    verb = RebootGuest(guest_id=str(op.server_id), hard=op.hard)
    await call(op, await host_of(op), REBOOT, verb, takes=takes)


async def settle_rebooted(op: _Reboot, tx: Transaction) -> None:
    transition = "reboot HARD" if op.hard else "reboot SOFT"
    await model.settle(tx, str(op.server_id), transition, states.ACTIVE, states.RUNNING)
