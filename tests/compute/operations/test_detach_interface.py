"""Generated tests of detaching interfaces."""

from __future__ import annotations

from typing import Any, ClassVar

import orjson

from kilonova.compute.operations.detach_interface import DetachInterface, DetachInterfaceParams
from kilonova.operations import Operation
from kilonova.store import Database, Transaction
from tests.compute.operations.support import begin_stored, wait_until_finished
from tests.compute.operations.test_attach_interface import InterfaceOperation
from tests.compute.operations.worlds import Variant, World
from tests.support.cloud import DEMO
from tests.support.full_cloud import running_worker


class TestDetachInterface(InterfaceOperation):
    __test__ = True
    operation: ClassVar[type[Operation]] = DetachInterface

    async def prepare(self, db: Database) -> World:
        world = await super().prepare(db)
        async with db.transaction() as tx:
            await self.begin_attach(tx, world)
        async with running_worker(db, world):
            await wait_until_finished(db)
        return world

    async def begin(self, tx: Transaction, world: World) -> str:
        nics = orjson.loads(await tx.fetch_value("SELECT nics FROM servers WHERE id = $1", world.server_id))
        params = DetachInterfaceParams(nics[-1]["port_id"])
        return await begin_stored(tx, DetachInterface, params, server_id=world.server_id, project_id=DEMO)

    async def outcome(self, db: Database, world: World) -> Any:
        """Another operation deletes the port."""
        async with running_worker(db, world):
            await wait_until_finished(db)
        return await self.list_resources(db, world)


class TestDetachOwnPort(Variant, TestDetachInterface):
    _expected: ClassVar[Any] = None
    own_port = True
