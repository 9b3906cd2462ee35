"""Trigger a crash dump: a server's system is interrupted so that it writes a dump of itself."""

from __future__ import annotations

from kilonova.compute.operations import silence
from kilonova.compute.operations.common import Harmless, server_of
from kilonova.hosts.messages import CrashDump
from kilonova.operations import Operation, Step

STEP = "interrupt guest"


class TriggerCrashDump(Harmless):
    kind = "trigger crash dump"
    action = "trigger_crash_dump"
    beside = True

    @staticmethod
    def steps() -> tuple[Step, ...]:
        return (Step(STEP, forward, undo=None, why="an interrupt cannot be taken back", deadline=120),)


async def forward(op: Operation) -> None:
    server = await server_of(op)
    await silence.demand(op, server["host"], STEP, CrashDump(guest_id=server["id"]))
