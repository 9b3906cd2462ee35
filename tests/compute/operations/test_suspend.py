"""Generated tests of pause, unpause, suspend and resume."""

from __future__ import annotations

from typing import ClassVar

from kilonova.compute.operations.suspend import Pause, Resume, Suspend, Unpause
from kilonova.operations import Operation
from tests.compute.operations.worlds import GuestOperation, Operations


class TestPause(GuestOperation):
    __test__ = True
    operation: ClassVar[type[Operation]] = Pause


class TestUnpause(GuestOperation):
    __test__ = True
    operation: ClassVar[type[Operation]] = Unpause
    before: ClassVar[Operations] = ((Pause, {}),)


class TestSuspend(GuestOperation):
    __test__ = True
    operation: ClassVar[type[Operation]] = Suspend


class TestResume(GuestOperation):
    __test__ = True
    operation: ClassVar[type[Operation]] = Resume
    before: ClassVar[Operations] = ((Suspend, {}),)
