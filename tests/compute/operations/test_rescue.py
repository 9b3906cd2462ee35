"""Generated tests of rescue."""

from __future__ import annotations

from typing import Any, ClassVar

from kilonova.compute.operations.power import Stop
from kilonova.compute.operations.rescue import Rescue
from kilonova.operations import Operation
from tests.compute.operations.worlds import PASSWORD, GuestOperation, Operations, Variant


class TestRescue(GuestOperation):
    __test__ = True
    operation: ClassVar[type[Operation]] = Rescue
    params: ClassVar[dict[str, Any]] = {"password": PASSWORD, "image": None}


class TestRescueStopped(Variant, TestRescue):
    _expected: ClassVar[Any] = None
    before: ClassVar[Operations] = ((Stop, {}),)
