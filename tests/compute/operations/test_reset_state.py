"""Generated tests of the reset of a server's state."""

from __future__ import annotations

from typing import Any, ClassVar

from kilonova.compute.operations.reset_state import ResetState
from kilonova.compute.operations.shelve import Shelve
from kilonova.operations import Operation
from kilonova.store import Database, Transaction
from tests.compute.operations.support import begin_stored, finish_operations
from tests.compute.operations.test_confirm_resize import ResizedServer
from tests.compute.operations.test_shelve import ShelvingOperation
from tests.compute.operations.worlds import GuestOperation, Variant, World
from tests.support.cloud import DEMO
from tests.support.full_cloud import running_worker


class TestResetState(GuestOperation):
    __test__ = True
    operation: ClassVar[type[Operation]] = ResetState
    params: ClassVar[dict[str, Any]] = {"state": "error"}


class TestResetStateOfResized(ResizedServer):
    """The resize is confirmed."""

    __test__ = True
    operation: ClassVar[type[Operation]] = ResetState
    state_after: ClassVar[str] = "active"

    async def begin(self, tx: Transaction, world: World) -> str:
        params = {"state": self.state_after}
        return await begin_stored(tx, ResetState, params, server_id=world.server_id, project_id=DEMO)

    async def outcome(self, db: Database, world: World) -> Any:
        async with running_worker(db, world):  # another operation discards the parked guest
            await finish_operations(world.cloud)
        return await super().outcome(db, world)


class TestResetStateOfResizedToError(Variant, TestResetStateOfResized):
    _expected: ClassVar[Any] = None
    state_after = "error"


class TestResetStateOfShelved(ShelvingOperation):
    """The image is deleted."""

    __test__ = True
    operation: ClassVar[type[Operation]] = ResetState
    params: ClassVar[dict[str, Any]] = {"state": "active"}
    before: ClassVar[tuple[type[Operation], ...]] = (Shelve,)
