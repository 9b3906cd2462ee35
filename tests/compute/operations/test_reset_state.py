"""Generated tests of the reset of a server's state."""

from __future__ import annotations

from typing import Any, ClassVar

from kilonova.compute.operations.reset_state import ResetState
from kilonova.operations import Operation
from tests.compute.operations.worlds import GuestOperation


class TestResetState(GuestOperation):
    __test__ = True
    operation: ClassVar[type[Operation]] = ResetState
    params: ClassVar[dict[str, Any]] = {"state": "error"}
