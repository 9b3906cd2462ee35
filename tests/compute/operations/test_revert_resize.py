"""Reverting a resize, from its table: whatever breaks, neither what the server was nor what it became is lost."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from kilonova.compute.operations.revert_resize import RevertResize
from kilonova.operations import Operation
from kilonova.store import Database
from tests.compute.operations.test_confirm_resize import ResizedServer
from tests.compute.operations.worlds import OnceMore, OnOneDatabase, World
from tests.support.whole import PATIENCE, working


class TestRevertResize(ResizedServer):
    __test__ = True
    operation: ClassVar[type[Operation]] = RevertResize

    async def outcome(self, db: Database, world: World) -> Any:
        """What the server had become is removed by an operation of its own, and then nothing is left of it."""
        async with working(db, world), asyncio.timeout(PATIENCE):
            while await db.fetch_value("SELECT 1 FROM operations WHERE finished_at IS NULL"):
                await asyncio.sleep(0.005)
        return await super().outcome(db, world)


class TestRevertResizeOnSameHost(OnOneDatabase, TestRevertResize):
    _expected: ClassVar[Any] = None
    hosts = 1
    params: ClassVar[dict[str, Any]] = {"same_host": True}


class TestRevertResizeStopped(OnceMore, TestRevertResize):
    _expected: ClassVar[Any] = None
    stopped = True
