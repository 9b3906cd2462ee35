"""Confirming a resize, from its table. It only goes forward."""

from __future__ import annotations

from typing import Any, ClassVar

from kilonova.compute.operations.confirm_resize import ConfirmResize
from kilonova.compute.operations.stop import Stop
from kilonova.operations import Operation, begin
from kilonova.store import Database, Transaction
from tests.compute.operations.test_resize import ColdMove, resized
from tests.compute.operations.worlds import OnceMore, World, carry_out
from tests.support.cloud import DEMO
from tests.support.whole import working


class ResizedServer(ColdMove):
    """A server that waits for a decision; `params` are of its resize."""

    __test__ = False
    stopped: ClassVar[bool] = False

    async def make_server(self, db: Database, world: World) -> None:
        await super().make_server(db, world)
        if self.stopped:
            await carry_out(db, world, Stop)
        async with db.transaction() as tx:
            await resized(tx, world, **self.params)
        async with working(db, world):
            await world.cloud.settled(world.server_id)

    async def prepare(self, db: Database) -> World:
        """Which host the server came from, not where it is."""
        world = await super().prepare(db)
        world.source = await db.fetch_value("SELECT source_host FROM moves")
        return world

    async def begin(self, tx: Transaction, world: World) -> str:
        move = await tx.fetch_value("SELECT operation_id FROM moves")
        return await begin(
            tx, self.operation, params={"move": move}, server_id=world.server_id, project_id=DEMO, user_id="member-id"
        )

    async def census(self, db: Database, world: World) -> Any:
        return {**await super().census(db, world), "outcome": await db.fetch_value("SELECT outcome FROM moves")}


class TestConfirmResize(ResizedServer):
    __test__ = True
    operation: ClassVar[type[Operation]] = ConfirmResize

    async def census(self, db: Database, world: World) -> Any:
        """What was discarded is gone, also where the rest failed. It can be confirmed again."""
        whole = await super().census(db, world)
        if whole["server"]["vm_state"] == "resized":
            whole |= {"kept": [], "machines": []}
        return whole


class TestConfirmResizeStopped(OnceMore, TestConfirmResize):
    _expected: ClassVar[Any] = None
    stopped = True


class TestConfirmResizeOnSameHost(OnceMore, TestConfirmResize):
    _expected: ClassVar[Any] = None
    hosts = 1
    params: ClassVar[dict[str, Any]] = {"same_host": True}
