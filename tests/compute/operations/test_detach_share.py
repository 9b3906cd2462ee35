"""Generated tests of detaching shares."""

from __future__ import annotations

from typing import ClassVar

from kilonova.compute.operations.detach_share import DetachShare
from kilonova.compute.server_shares import model
from kilonova.operations import Operation
from kilonova.store import Database, Transaction
from tests.compute.operations.support import begin_stored
from tests.compute.operations.test_attach_share import ShareOperation
from tests.compute.operations.worlds import World
from tests.support.cloud import DEMO


class TestDetachShare(ShareOperation):
    __test__ = True
    operation: ClassVar[type[Operation]] = DetachShare

    async def prepare(self, db: Database) -> World:
        world = await super().prepare(db)
        await self.attach(db, world)
        return world

    async def begin(self, tx: Transaction, world: World) -> str:
        (share,) = await model.of_server(tx, world.server_id)
        await model.set_status(tx, share.id, model.DETACHING)
        params = {"server_share": share.id, "status": model.ATTACHED}
        return await begin_stored(tx, DetachShare, params, server_id=world.server_id, project_id=DEMO)
