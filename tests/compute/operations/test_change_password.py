"""Generated tests of the password change."""

from __future__ import annotations

from typing import Any, ClassVar

from kilonova.compute.operations.change_password import ChangePassword
from kilonova.operations import Operation
from tests.compute.operations.worlds import PASSWORD, GuestOperation


class TestChangePassword(GuestOperation):
    __test__ = True
    operation: ClassVar[type[Operation]] = ChangePassword
    params: ClassVar[dict[str, Any]] = {"password": PASSWORD}
