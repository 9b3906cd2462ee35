"""Attaching and detaching interfaces: each step twice, failed with nothing left behind, and killed."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import orjson

from kilonova.compute.operations.attach_interface import AttachInterface
from kilonova.compute.operations.detach_interface import DetachInterface
from kilonova.operations import Operation, begin
from kilonova.store import Database, Transaction
from tests.compute.operations.worlds import OnceMore, ServerOperation, World
from tests.compute.servers.support import guest_on, make_port
from tests.support.cloud import DEMO
from tests.support.whole import PATIENCE, working


class InterfaceOperation(ServerOperation):
    """`given`: whether the port is the user's own."""

    __test__ = False
    hosts: ClassVar[int] = 1
    given: ClassVar[bool] = False

    async def prepare(self, db: Database) -> World:
        world = await super().prepare(db)
        self.port = (await make_port(world.cloud, world.cloud.network_id))["id"] if self.given else None
        return world

    async def begin_attach(self, tx: Transaction, world: World) -> str:
        named = {"network_id": world.cloud.network_id, "label": "private", "fixed_ip": None, "tag": "t"}
        params = {"interface": {**named, "port": self.port}}
        return await begin(tx, AttachInterface, params=params, server_id=world.server_id, project_id=DEMO)

    async def census(self, db: Database, world: World) -> Any:
        server = await db.fetch_one("SELECT nics FROM servers WHERE id = $1", world.server_id)
        assert server is not None
        kept = [nic["port_id"] for nic in orjson.loads(server["nics"])]
        sql = "SELECT id, host_id FROM ports WHERE device_id = $1 ORDER BY id"
        bound = await db.fetch(sql, world.server_id)
        guest = [nic.port_id for nic in guest_on(world.cloud, "sim-001", world.server_id).nics]
        return {
            **await super().census(db, world),
            "interfaces": len(kept),
            "alike": sorted(kept) == sorted(guest) == [port["id"] for port in bound],
            "bound": [port["host_id"] for port in bound],
            "ports of servers": await db.fetch_value("SELECT COUNT(*) FROM ports WHERE device_owner LIKE 'compute:%'"),
            "left": await db.fetch("SELECT kind FROM operations WHERE finished_at IS NULL AND server_id IS NULL"),
        }

    def test_its_end(self) -> None:
        cls = type(self)
        if cls._expected is None:
            cls._expected = asyncio.run(self._undisturbed())
        seen = cls._expected.outcome
        interfaces = 2 if cls.operation is AttachInterface else 1
        assert (seen["interfaces"], seen["alike"], seen["bound"]) == (interfaces, True, ["sim-001"] * interfaces)


class TestAttachInterface(InterfaceOperation):
    __test__ = True
    operation: ClassVar[type[Operation]] = AttachInterface

    async def begin(self, tx: Transaction, world: World) -> str:
        return await self.begin_attach(tx, world)


class TestAttachOwnPort(OnceMore, TestAttachInterface):
    _expected: ClassVar[Any] = None
    given = True


class TestDetachInterface(InterfaceOperation):
    __test__ = True
    operation: ClassVar[type[Operation]] = DetachInterface

    async def prepare(self, db: Database) -> World:
        world = await super().prepare(db)
        async with db.transaction() as tx:
            await self.begin_attach(tx, world)
        async with working(db, world):
            await nothing_open(db)
        return world

    async def begin(self, tx: Transaction, world: World) -> str:
        nics = orjson.loads(await tx.fetch_value("SELECT nics FROM servers WHERE id = $1", world.server_id))
        params = {"port_id": nics[-1]["port_id"]}
        return await begin(tx, DetachInterface, params=params, server_id=world.server_id, project_id=DEMO)

    async def outcome(self, db: Database, world: World) -> Any:
        """The port is deleted by an operation of its own."""
        async with working(db, world):
            await nothing_open(db)
        return await self.census(db, world)


class TestDetachOwnPort(OnceMore, TestDetachInterface):
    _expected: ClassVar[Any] = None
    given = True


async def nothing_open(db: Database) -> None:
    async with asyncio.timeout(PATIENCE):
        while await db.fetch_value("SELECT COUNT(*) FROM operations WHERE finished_at IS NULL"):
            await asyncio.sleep(0.01)
