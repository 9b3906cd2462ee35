"""Trigger a crash dump: an interrupt makes the guest's system write a dump."""

from __future__ import annotations

from kilonova.compute import operation_kinds as kinds
from kilonova.compute.host_calls import call
from kilonova.compute.operations.steps.server import Harmless, host_of
from kilonova.hosts.messages.verbs import CrashDump
from kilonova.operations import Entry, Operation, Step

STEP = "interrupt guest"


class TriggerCrashDump(Harmless):
    kind = kinds.TRIGGER_CRASH_DUMP
    action = "trigger_crash_dump"
    blocks_requests = False

    @staticmethod
    def steps() -> tuple[Entry[Operation], ...]:
        return (Step(STEP, forward, undo=None, why="an interrupt cannot be taken back", deadline=120),)


async def forward(op: Operation) -> None:
    await call(op, await host_of(op), STEP, CrashDump(guest_id=str(op.server_id)))
