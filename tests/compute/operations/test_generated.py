"""Every operation of compute: each step twice, failed with nothing left behind, and killed."""

from __future__ import annotations

import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, ClassVar

import orjson

from kilonova import clock
from kilonova.compute.operations.boot import Boot
from kilonova.compute.operations.delete import Delete
from kilonova.compute.operations.reboot import HardReboot, Reboot
from kilonova.compute.operations.start import Start
from kilonova.compute.operations.stop import Stop
from kilonova.config import load
from kilonova.ids import new_id
from kilonova.operations import Operation, begin
from kilonova.operations.testing import OperationTests
from kilonova.operations.views import running_of
from kilonova.services import Services
from kilonova.store import Database, Transaction
from tests.support.cloud import DEMO, put_server
from tests.support.whole import Whole, furnish, working


class World(Services):
    """What the worker gets as its services, and the server that the operation is about."""

    cloud: Whole
    server_id: str
    stack: AsyncExitStack


class ServerOperation(OperationTests):
    __test__ = False
    params: ClassVar[dict[str, Any]] = {}

    async def prepare(self, db: Database) -> World:
        world = World()
        world.stack = stack = AsyncExitStack()
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        world.config = load(environ={})
        world.db = db
        world.cloud = await furnish(world, directory, stack, hosts=2)
        world.server_id = new_id()
        await self.make_server(db, world)
        return world

    async def dismantle(self, world: World) -> None:
        await world.stack.aclose()

    async def make_server(self, db: Database, world: World) -> None:
        """A server that was booted in the ordinary way."""
        await put_building(db, world.server_id)
        async with db.transaction() as tx:
            await boot(tx, world)
        async with working(db, world):
            await world.cloud.settled(world.server_id)

    async def begin(self, tx: Transaction, world: World) -> str:
        return await begin(tx, self.operation, params=self.params, server_id=world.server_id, project_id=DEMO)

    async def census(self, db: Database, world: World) -> Any:
        """What is held for servers anywhere, and what the server is; its guest's and ports' ids are random."""
        server = await db.fetch_one("SELECT * FROM servers WHERE id = $1", world.server_id)
        assert server is not None
        guests = await world.cloud.guests()
        return {
            "allocations": await db.fetch("SELECT resource_class, used FROM allocations ORDER BY 1"),
            "ports": await db.fetch_value("SELECT COUNT(*) FROM ports WHERE device_id = $1", world.server_id),
            "addresses": await db.fetch_value("SELECT COUNT(*) FROM port_addresses"),
            "guests": [power for _, power in guests.values()],
            "guest is on its host": [host for host, _ in guests.values()] == [server["host"]] * len(guests),
            "placed": server["host"] is not None,
            "running": sorted(await running_of(db, [world.server_id])),
            **self.state(server),
        }

    def state(self, server: dict[str, Any]) -> dict[str, Any]:
        return {"vm_state": server["vm_state"], "power_state": server["power_state"], "deleted": server["deleted"]}


async def put_building(db: Database, server_id: str) -> None:
    flavor = {"name": "m1.tiny", "vcpus": 1, "ram": 512, "disk": 1, "ephemeral": 0, "swap": 0, "extra_specs": {}}
    await put_server(
        db,
        server_id,
        vm_state="building",
        power_state=0,
        flavor=orjson.dumps(flavor).decode(),
        created_at=clock.now(),
    )


async def boot(tx: Transaction, world: World) -> str:
    network = {"network_id": world.cloud.network_id, "label": "private", "port": None, "fixed_ip": None, "tag": None}
    params = {"networks": [network], "security_groups": ["default"], "destination": None}
    return await begin(tx, Boot, params=params, server_id=world.server_id, project_id=DEMO)


class TestBoot(ServerOperation):
    __test__ = True
    operation: ClassVar[type[Operation]] = Boot

    async def make_server(self, db: Database, world: World) -> None:
        await put_building(db, world.server_id)

    async def begin(self, tx: Transaction, world: World) -> str:
        return await boot(tx, world)

    def state(self, server: dict[str, Any]) -> dict[str, Any]:
        """A failed boot leaves the server in error, and that is all it leaves."""
        return {"active": server["vm_state"] == "active", "power_state": server["power_state"]}


class TestDelete(ServerOperation):
    __test__ = True
    operation: ClassVar[type[Operation]] = Delete

    async def census(self, db: Database, world: World) -> Any:
        """A delete only goes forward: one that failed keeps its server, so that nothing of it is without an owner."""
        whole = await super().census(db, world)
        server = await db.fetch_one("SELECT * FROM servers WHERE id = $1", world.server_id)
        assert server is not None
        held = {key: whole[key] for key in ("allocations", "ports", "guests")}
        return {"orphans": held if server["deleted"] else {}, "deleted": server["deleted"]}


class TestStop(ServerOperation):
    __test__ = True
    operation: ClassVar[type[Operation]] = Stop


class TestStart(ServerOperation):
    __test__ = True
    operation: ClassVar[type[Operation]] = Start

    async def make_server(self, db: Database, world: World) -> None:
        await super().make_server(db, world)
        async with db.transaction() as tx:
            await begin(tx, Stop, server_id=world.server_id, project_id=DEMO)
        async with working(db, world):
            await world.cloud.settled(world.server_id)


class TestReboot(ServerOperation):
    __test__ = True
    operation: ClassVar[type[Operation]] = Reboot


class TestHardReboot(ServerOperation):
    __test__ = True
    operation: ClassVar[type[Operation]] = HardReboot
