"""Generated tests of attaching interfaces."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import orjson

from kilonova.compute.operations.attach_interface import AttachInterface, AttachInterfaceParams
from kilonova.compute.servers.requested_networks import RequestedInterface
from kilonova.operations import Operation
from kilonova.store import Database, Transaction
from tests.compute.operations.support import begin_stored
from tests.compute.operations.worlds import ServerOperation, Variant, World
from tests.compute.servers.support import guest_on, make_port
from tests.support.cloud import DEMO


class InterfaceOperation(ServerOperation):
    """`own_port`: whether the user has created the port."""

    __test__ = False
    hosts: ClassVar[int] = 1
    own_port: ClassVar[bool] = False

    async def prepare(self, db: Database) -> World:
        world = await super().prepare(db)
        self.port = (await make_port(world.cloud, world.cloud.network_id))["id"] if self.own_port else None
        return world

    async def begin_attach(self, tx: Transaction, world: World) -> str:
        params = AttachInterfaceParams(RequestedInterface(world.cloud.network_id, "private", self.port, tag="t"))
        return await begin_stored(tx, AttachInterface, params, server_id=world.server_id, project_id=DEMO)

    async def list_resources(self, db: Database, world: World) -> Any:
        server = await db.fetch_one("SELECT nics FROM servers WHERE id = $1", world.server_id)
        assert server is not None
        in_row = [nic["port_id"] for nic in orjson.loads(server["nics"])]
        sql = "SELECT id, host_id FROM ports WHERE device_id = $1 ORDER BY id"
        bound = await db.fetch(sql, world.server_id)
        in_guest = [nic.port_id for nic in guest_on(world.cloud, "sim-001", world.server_id).nics]
        return {
            **await super().list_resources(db, world),
            "interfaces": len(in_row),
            "consistent": sorted(in_row) == sorted(in_guest) == [port["id"] for port in bound],
            "bound": [port["host_id"] for port in bound],
            "ports of servers": await db.fetch_value("SELECT COUNT(*) FROM ports WHERE device_owner LIKE 'compute:%'"),
            "deferred": await db.fetch("SELECT kind FROM operations WHERE finished_at IS NULL AND server_id IS NULL"),
        }

    def test_result(self) -> None:
        cls = type(self)
        if cls._expected is None:
            cls._expected = asyncio.run(self._run_without_faults())
        seen = cls._expected.outcome
        interfaces = 2 if cls.operation is AttachInterface else 1
        assert (seen["interfaces"], seen["consistent"], seen["bound"]) == (interfaces, True, ["sim-001"] * interfaces)


class TestAttachInterface(InterfaceOperation):
    __test__ = True
    operation: ClassVar[type[Operation]] = AttachInterface

    async def begin(self, tx: Transaction, world: World) -> str:
        return await self.begin_attach(tx, world)


class TestAttachOwnPort(Variant, TestAttachInterface):
    _expected: ClassVar[Any] = None
    own_port = True
