"""Generated tests of adding and removing fixed addresses and security groups."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import orjson

from kilonova.compute.operations.change_ports import (
    AddFixedIp,
    AddFixedIpParams,
    AddSecurityGroup,
    GroupParams,
    RemoveFixedIp,
    RemoveFixedIpParams,
    RemoveSecurityGroup,
)
from kilonova.operations import Operation
from kilonova.store import Database, Transaction
from tests.compute.operations.attachment_worlds import wait_until_idle
from tests.compute.operations.support import begin_stored
from tests.compute.operations.worlds import ServerOperation, World
from tests.compute.servers.support import NETWORK
from tests.support.cloud import DEMO
from tests.support.full_cloud import running_worker


class TestAddFixedIp(ServerOperation):
    __test__ = True
    operation: ClassVar[type[Operation]] = AddFixedIp
    hosts: ClassVar[int] = 1
    result: ClassVar[int] = 2

    async def prepare(self, db: Database) -> World:
        world = await super().prepare(db)
        (nic,) = await _nics(db, world)
        self.request: AddFixedIpParams | RemoveFixedIpParams = AddFixedIpParams(nic["network_id"])
        return world

    async def begin(self, tx: Transaction, world: World) -> str:
        return await begin_stored(tx, self.operation, self.request, server_id=world.server_id, project_id=DEMO)

    async def list_resources(self, db: Database, world: World) -> Any:
        sql = "SELECT COUNT(*) FROM port_addresses a JOIN ports p ON p.id = a.port_id WHERE p.device_id = $1"
        return {
            "in row": [len(nic["addresses"]) for nic in await _nics(db, world)],
            "on ports": await db.fetch_value(sql, world.server_id),
        }

    def test_result(self) -> None:
        outcome = asyncio.run(self._run_without_faults()).outcome
        assert outcome == {"in row": [self.result], "on ports": self.result}


class TestRemoveFixedIp(TestAddFixedIp):
    operation: ClassVar[type[Operation]] = RemoveFixedIp
    _expected: ClassVar[Any] = None
    result: ClassVar[int] = 1

    async def prepare(self, db: Database) -> World:
        world = await super().prepare(db)
        async with db.transaction() as tx:
            await begin_stored(tx, AddFixedIp, self.request, server_id=world.server_id, project_id=DEMO)
        async with running_worker(db, world):
            await wait_until_idle(db, world)
        (nic,) = await _nics(db, world)
        self.request = RemoveFixedIpParams(nic["addresses"][0])
        return world


async def _nics(db: Database, world: World) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = orjson.loads(
        await db.fetch_value("SELECT nics FROM servers WHERE id = $1", world.server_id)
    )
    return found


class TestAddSecurityGroup(ServerOperation):
    __test__ = True
    operation: ClassVar[type[Operation]] = AddSecurityGroup
    hosts: ClassVar[int] = 1
    result: ClassVar[list[str]] = ["default", "web"]

    async def prepare(self, db: Database) -> World:
        world = await super().prepare(db)
        made = await world.cloud.post("/security-groups", {"security_group": {"name": "web"}}, root=NETWORK)
        assert made.status == 201, made.body
        self.group = GroupParams(made.json()["security_group"]["id"], "web")
        return world

    async def begin(self, tx: Transaction, world: World) -> str:
        return await begin_stored(tx, self.operation, self.group, server_id=world.server_id, project_id=DEMO)

    async def list_resources(self, db: Database, world: World) -> Any:
        nics = orjson.loads(await db.fetch_value("SELECT nics FROM servers WHERE id = $1", world.server_id))
        sql = (
            "SELECT g.name FROM port_security_groups p JOIN security_groups g ON g.id = p.security_group_id"
            " JOIN ports o ON o.id = p.port_id WHERE o.device_id = $1 ORDER BY 1"
        )
        return {
            "in row": [sorted(nic["security_groups"]) for nic in nics],
            "on ports": [row["name"] for row in await db.fetch(sql, world.server_id)],
        }

    def test_result(self) -> None:
        outcome = asyncio.run(self._run_without_faults()).outcome
        assert outcome == {"in row": [self.result], "on ports": self.result}


class TestRemoveSecurityGroup(TestAddSecurityGroup):
    operation: ClassVar[type[Operation]] = RemoveSecurityGroup
    _expected: ClassVar[Any] = None
    result: ClassVar[list[str]] = ["default"]

    async def prepare(self, db: Database) -> World:
        world = await super().prepare(db)
        async with db.transaction() as tx:
            await begin_stored(tx, AddSecurityGroup, self.group, server_id=world.server_id, project_id=DEMO)
        async with running_worker(db, world):
            await wait_until_idle(db, world)
        return world
