"""Changing the addresses of a server: each step twice, failed with nothing left behind, and killed."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import orjson

from kilonova.compute.operations.change_addresses import AddAddress, RemoveAddress
from kilonova.operations import Operation, begin
from kilonova.store import Database, Transaction
from tests.compute.operations.attachment_worlds import idle
from tests.compute.operations.worlds import ServerOperation, World
from tests.support.cloud import DEMO
from tests.support.whole import working


class TestAddAddress(ServerOperation):
    __test__ = True
    operation: ClassVar[type[Operation]] = AddAddress
    hosts: ClassVar[int] = 1
    end: ClassVar[int] = 2

    async def prepare(self, db: Database) -> World:
        world = await super().prepare(db)
        (nic,) = await _nics(db, world)
        self.asked = {"network_id": nic["network_id"]}
        return world

    async def begin(self, tx: Transaction, world: World) -> str:
        return await begin(tx, self.operation, params=self.asked, server_id=world.server_id, project_id=DEMO)

    async def census(self, db: Database, world: World) -> Any:
        sql = "SELECT COUNT(*) FROM port_addresses a JOIN ports p ON p.id = a.port_id WHERE p.device_id = $1"
        return {
            "kept": [len(nic["addresses"]) for nic in await _nics(db, world)],
            "on ports": await db.fetch_value(sql, world.server_id),
        }

    def test_its_end(self) -> None:
        outcome = asyncio.run(self._undisturbed()).outcome
        assert outcome == {"kept": [self.end], "on ports": self.end}


class TestRemoveAddress(TestAddAddress):
    operation: ClassVar[type[Operation]] = RemoveAddress
    _expected: ClassVar[Any] = None
    end: ClassVar[int] = 1

    async def prepare(self, db: Database) -> World:
        world = await super().prepare(db)
        async with db.transaction() as tx:
            await begin(tx, AddAddress, params=self.asked, server_id=world.server_id, project_id=DEMO)
        async with working(db, world):
            await idle(db, world)
        (nic,) = await _nics(db, world)
        self.asked = {"address": nic["addresses"][0]}
        return world


async def _nics(db: Database, world: World) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = orjson.loads(
        await db.fetch_value("SELECT nics FROM servers WHERE id = $1", world.server_id)
    )
    return found
