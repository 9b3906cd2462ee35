"""Generated tests of the crash dump."""

from __future__ import annotations

from typing import ClassVar

from kilonova.compute.operations.crash_dump import TriggerCrashDump
from kilonova.operations import Operation
from tests.compute.operations.worlds import GuestOperation


class TestTriggerCrashDump(GuestOperation):
    __test__ = True
    operation: ClassVar[type[Operation]] = TriggerCrashDump
