"""Generated tests of soft delete."""

from __future__ import annotations

from typing import Any, ClassVar

from kilonova.compute.operations.soft_delete import SoftDelete
from kilonova.operations import Operation
from tests.compute.operations.worlds import GuestOperation


class TestSoftDelete(GuestOperation):
    __test__ = True
    operation: ClassVar[type[Operation]] = SoftDelete

    def state(self, server: dict[str, Any]) -> dict[str, Any]:
        return {**super().state(server), "soft-deleted": server["soft_deleted_at"] is not None}
