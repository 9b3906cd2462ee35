"""A world with one server, for the generated tests of operations, and what is counted in it before and after."""

from __future__ import annotations

import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, ClassVar

import orjson
import pytest

from kilonova import clock
from kilonova.compute.migrations.model import begin_move, params_of
from kilonova.compute.operations.boot import Boot
from kilonova.ids import new_id
from kilonova.operations import Operation, begin
from kilonova.operations.testing import Faults, OperationTests
from kilonova.operations.views import running_of
from kilonova.services import Services
from kilonova.store import Database, Transaction
from tests.support.cloud import DEMO, put_server
from tests.support.delayed import DELAYS
from tests.support.whole import Whole, furnish, settings, working


class World(Services):
    """What the worker gets as its services, and the server that the operation is about."""

    cloud: Whole
    server_id: str
    source: str
    stack: AsyncExitStack


class ServerOperation(OperationTests):
    __test__ = False
    params: ClassVar[dict[str, Any]] = {}
    hosts: ClassVar[int] = 2

    async def open(self, url: str) -> Database:
        return DELAYS.database(await super().open(url))

    async def prepare(self, db: Database) -> World:
        world = World()
        world.stack = stack = AsyncExitStack()
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        world.config = settings()
        world.config.data = str(directory)
        world.db = db
        world.cloud = await furnish(world, directory, stack, hosts=self.hosts)
        world.server_id = new_id()
        await self.make_server(db, world)
        return world

    async def dismantle(self, world: World) -> None:
        await world.stack.aclose()

    async def make_server(self, db: Database, world: World) -> None:
        """A server that was booted in the ordinary way."""
        await self.boot_server(db, world)

    async def boot_server(self, db: Database, world: World) -> None:
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


class OnOneDatabase:
    """For another run of what was tried on both: hosts know nothing of databases."""

    @pytest.fixture
    def database_url(self, sqlite_url: str) -> str:
        return sqlite_url


class OnceMore(OnOneDatabase):
    """For another server or other parameters, and the same functions: they were killed at every step already."""

    test_killed_at_each_step: ClassVar[Any] = None

    def killed_at_each_undo(self) -> list[Faults]:
        return []


async def put_building(db: Database, server_id: str, specs: dict[str, str] | None = None, **values: Any) -> None:
    sizes = {"vcpus": 1, "ram": 512, "disk": 1, "ephemeral": 0, "swap": 0}
    flavor = {"name": "m1.tiny", **sizes, "extra_specs": specs or {}}
    await put_server(
        db,
        server_id,
        vm_state="building",
        power_state=0,
        flavor=orjson.dumps(flavor).decode(),
        created_at=clock.now(),
        **values,
    )


async def boot(tx: Transaction, world: World, destination: dict[str, Any] | None = None) -> str:
    network = {"network_id": world.cloud.network_id, "label": "private", "port": None, "fixed_ip": None, "tag": None}
    params = {"networks": [network], "security_groups": ["default"], "destination": destination}
    return await begin(tx, Boot, params=params, server_id=world.server_id, project_id=DEMO)


async def carry_out(db: Database, world: World, operation: type[Operation], **params: Any) -> None:
    """Have another operation done to the world's server."""
    async with db.transaction() as tx:
        await begin(tx, operation, params=params, server_id=world.server_id, project_id=DEMO, user_id="member-id")
    async with working(db, world):
        await world.cloud.settled(world.server_id)


class MoveOperation(ServerOperation):
    """Counts with the names of hosts. Which of the two the server came from is left open in the outcome."""

    __test__ = False
    move_type: ClassVar[str]

    async def prepare(self, db: Database) -> World:
        world = await super().prepare(db)
        world.source = await db.fetch_value("SELECT host FROM servers WHERE id = $1", world.server_id)
        return world

    async def begin(self, tx: Transaction, world: World) -> str:
        server = await tx.fetch_one("SELECT * FROM servers WHERE id = $1", world.server_id)
        assert server is not None
        return await begin_move(
            tx,
            self.operation,
            server,
            type=self.move_type,
            params=params_of(**self.params),
            user_id="member-id",
            request_id="req-move",
        )

    async def census(self, db: Database, world: World) -> Any:
        server = await db.fetch_one("SELECT * FROM servers WHERE id = $1", world.server_id)
        assert server is not None
        return {
            "server": {name: server[name] for name in ("vm_state", "power_state", "host", "flavor_id", "vcpus")},
            "shares": await db.fetch(_SHARES, world.server_id),
            "ports": await db.fetch("SELECT host_id FROM ports WHERE device_id = $1", world.server_id),
            "standby": await db.fetch("SELECT host FROM standby_bindings"),
            "guests": [(host, power) for host, power in (await world.cloud.guests()).values()],
            "kept": [host for host, _ in await world.cloud.kept()],
            "images": await db.fetch_value("SELECT COUNT(*) FROM images WHERE status <> 'deleted'"),
            "left": await db.fetch("SELECT kind FROM operations WHERE finished_at IS NULL AND server_id IS NULL"),
        }

    async def outcome(self, db: Database, world: World) -> Any:
        text = orjson.dumps(await self.census(db, world)).decode()
        other = {"sim-001": "sim-002", "sim-002": "sim-001"}[world.source]
        return text.replace(world.source, "source").replace(other, "destination")


_SHARES = """
SELECT c.type, CASE WHEN c.uuid = $1 THEN 1 ELSE 0 END AS of_server, p.name, a.resource_class, a.used FROM allocations a
JOIN consumers c ON c.uuid = a.consumer_uuid JOIN resource_providers p ON p.id = a.provider_id ORDER BY 1, 3, 4
"""
