"""Changing the security groups of a server: each step twice, failed with nothing left behind, and killed."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import orjson

from kilonova.compute.operations.change_groups import AddGroup, RemoveGroup
from kilonova.operations import Operation, begin
from kilonova.store import Database, Transaction
from tests.compute.operations.attachment_worlds import idle
from tests.compute.operations.worlds import ServerOperation, World
from tests.compute.servers.support import NETWORK
from tests.support.cloud import DEMO
from tests.support.whole import working


class TestAddGroup(ServerOperation):
    __test__ = True
    operation: ClassVar[type[Operation]] = AddGroup
    hosts: ClassVar[int] = 1
    end: ClassVar[list[str]] = ["default", "web"]

    async def prepare(self, db: Database) -> World:
        world = await super().prepare(db)
        made = await world.cloud.post("/security-groups", {"security_group": {"name": "web"}}, root=NETWORK)
        assert made.status == 201, made.body
        self.group = {"group": made.json()["security_group"]["id"], "name": "web"}
        return world

    async def begin(self, tx: Transaction, world: World) -> str:
        return await begin(tx, self.operation, params=self.group, server_id=world.server_id, project_id=DEMO)

    async def census(self, db: Database, world: World) -> Any:
        nics = orjson.loads(await db.fetch_value("SELECT nics FROM servers WHERE id = $1", world.server_id))
        sql = (
            "SELECT g.name FROM port_security_groups p JOIN security_groups g ON g.id = p.security_group_id"
            " JOIN ports o ON o.id = p.port_id WHERE o.device_id = $1 ORDER BY 1"
        )
        return {
            "kept": [sorted(nic["security_groups"]) for nic in nics],
            "on ports": [row["name"] for row in await db.fetch(sql, world.server_id)],
        }

    def test_its_end(self) -> None:
        outcome = asyncio.run(self._undisturbed()).outcome
        assert outcome == {"kept": [self.end], "on ports": self.end}


class TestRemoveGroup(TestAddGroup):
    operation: ClassVar[type[Operation]] = RemoveGroup
    _expected: ClassVar[Any] = None
    end: ClassVar[list[str]] = ["default"]

    async def prepare(self, db: Database) -> World:
        world = await super().prepare(db)
        async with db.transaction() as tx:
            await begin(tx, AddGroup, params=self.group, server_id=world.server_id, project_id=DEMO)
        async with working(db, world):
            await idle(db, world)
        return world
