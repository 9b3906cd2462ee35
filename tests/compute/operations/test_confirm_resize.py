"""Generated tests of confirming a resize, which has no undo."""

from __future__ import annotations

from typing import Any, ClassVar

from kilonova.compute.operations.confirm_resize import ConfirmResize
from kilonova.compute.operations.power import Stop
from kilonova.operations import Operation
from kilonova.store import Database, Transaction
from tests.compute.operations.support import begin_stored
from tests.compute.operations.test_resize import ColdMove, begin_larger_resize
from tests.compute.operations.worlds import Variant, World, run_operation
from tests.support.cloud import DEMO
from tests.support.full_cloud import running_worker


class ResizedServer(ColdMove):
    """A resized server that is not confirmed. `params`: those of the resize."""

    __test__ = False
    stopped: ClassVar[bool] = False

    async def make_server(self, db: Database, world: World) -> None:
        await super().make_server(db, world)
        if self.stopped:
            await run_operation(db, world, Stop)
        async with db.transaction() as tx:
            await begin_larger_resize(tx, world, **self.params)
        async with running_worker(db, world):
            await world.cloud.wait_until_settled(world.server_id)

    async def prepare(self, db: Database) -> World:
        """`source` is the host before the resize."""
        world = await super().prepare(db)
        world.source = await db.fetch_value("SELECT source_host FROM moves")
        return world

    async def begin(self, tx: Transaction, world: World) -> str:
        move = await tx.fetch_value("SELECT operation_id FROM moves")
        return await begin_stored(
            tx, self.operation, {"move": move}, server_id=world.server_id, project_id=DEMO, user_id="member-id"
        )

    async def list_resources(self, db: Database, world: World) -> Any:
        return {**await super().list_resources(db, world), "outcome": await db.fetch_value("SELECT outcome FROM moves")}


class TestConfirmResize(ResizedServer):
    __test__ = True
    operation: ClassVar[type[Operation]] = ConfirmResize

    async def list_resources(self, db: Database, world: World) -> Any:
        """A failed confirmation may have discarded the slot. The resize can be confirmed again."""
        whole = await super().list_resources(db, world)
        if whole["server"]["vm_state"] == "resized":
            whole |= {"slots": [], "guests and slots": []}
        return whole


class TestConfirmResizeStopped(Variant, TestConfirmResize):
    _expected: ClassVar[Any] = None
    stopped = True


class TestConfirmResizeOnSameHost(Variant, TestConfirmResize):
    _expected: ClassVar[Any] = None
    hosts = 1
    params: ClassVar[dict[str, Any]] = {"same_host": True}
