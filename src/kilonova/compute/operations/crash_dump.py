"""Trigger a crash dump: an interrupt makes the guest's system write a dump."""

from __future__ import annotations

from kilonova.compute.operations.steps import hosts
from kilonova.compute.operations.steps.server import Harmless, server_of
from kilonova.hosts.messages.verbs import CrashDump
from kilonova.operations import Operation, Step

STEP = "interrupt guest"


class TriggerCrashDump(Harmless):
    kind = "trigger_crash_dump"
    action = "trigger_crash_dump"
    blocks_requests = False

    @staticmethod
    def steps() -> tuple[Step, ...]:
        return (Step(STEP, forward, undo=None, why="an interrupt cannot be taken back", deadline=120),)


async def forward(op: Operation) -> None:
    server = await server_of(op)
    await hosts.call_or_fail(op, server["host"], STEP, CrashDump(guest_id=server["id"]))
