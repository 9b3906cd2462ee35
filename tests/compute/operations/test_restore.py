"""Generated tests of the restore of soft-deleted servers."""

from __future__ import annotations

from typing import Any, ClassVar

from kilonova.compute.operations.rescue import Rescue
from kilonova.compute.operations.restore import Restore
from kilonova.compute.operations.soft_delete import SoftDelete
from kilonova.operations import Operation
from kilonova.store import Database
from tests.compute.operations import test_soft_delete
from tests.compute.operations.worlds import PASSWORD, Operations, Variant, World


class TestRestore(test_soft_delete.TestSoftDelete):
    _expected: ClassVar[Any] = None
    operation: ClassVar[type[Operation]] = Restore
    before: ClassVar[Operations] = ((SoftDelete, {}),)


class TestRestoreRescued(Variant, TestRestore):
    _expected: ClassVar[Any] = None
    params: ClassVar[dict[str, Any]] = {"rescued": True}
    before: ClassVar[Operations] = ((Rescue, {"password": PASSWORD, "image": None}), (SoftDelete, {}))

    async def list_resources(self, db: Database, world: World) -> Any:
        """A failed restore also takes the server out of rescue."""
        return {**await super().list_resources(db, world), "rescue": ...}
