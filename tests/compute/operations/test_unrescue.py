"""Generated tests of unrescue."""

from __future__ import annotations

from typing import Any, ClassVar

from kilonova.compute.operations.rescue import Rescue
from kilonova.compute.operations.unrescue import Unrescue
from kilonova.operations import Operation
from kilonova.store import Database
from tests.compute.operations.worlds import PASSWORD, GuestOperation, Operations, World


class TestUnrescue(GuestOperation):
    """A failed unrescue may leave the guest out of rescue. The user can unrescue again."""

    __test__ = True
    operation: ClassVar[type[Operation]] = Unrescue
    before: ClassVar[Operations] = ((Rescue, {"password": PASSWORD, "image": None}),)

    async def list_resources(self, db: Database, world: World) -> Any:
        return {**await super().list_resources(db, world), "rescue": ...}
