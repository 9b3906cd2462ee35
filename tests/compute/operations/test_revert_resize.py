"""Generated tests of reverting a resize: a failure loses neither the old nor the new guest."""

from __future__ import annotations

from typing import Any, ClassVar

from kilonova.compute.operations.revert_resize import RevertResize
from kilonova.operations import Operation
from kilonova.store import Database
from tests.compute.operations.support import wait_until_finished
from tests.compute.operations.test_confirm_resize import ResizedServer
from tests.compute.operations.worlds import OnOneDatabase, Variant, World
from tests.support.full_cloud import running_worker


class TestRevertResize(ResizedServer):
    __test__ = True
    operation: ClassVar[type[Operation]] = RevertResize

    async def outcome(self, db: Database, world: World) -> Any:
        """Another operation removes the resized guest."""
        async with running_worker(db, world):
            await wait_until_finished(db)
        return await super().outcome(db, world)


class TestRevertResizeOnSameHost(OnOneDatabase, TestRevertResize):
    _expected: ClassVar[Any] = None
    hosts = 1
    params: ClassVar[dict[str, Any]] = {"same_host": True}


class TestRevertResizeStopped(Variant, TestRevertResize):
    _expected: ClassVar[Any] = None
    stopped = True
