"""A cloud with one server (`World`) for the generated tests of operations, and lists of its resources."""

from __future__ import annotations

import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, ClassVar

import orjson
import pytest
from msgspec import convert

from kilonova import clock
from kilonova.compute.migrations.model import begin_move
from kilonova.compute.operations.boot import Boot
from kilonova.compute.servers.server import Server
from kilonova.ids import new_id
from kilonova.operations import Operation
from kilonova.operations.testing import Faults, OperationTests
from kilonova.operations.views import find_running
from kilonova.services import Services
from kilonova.store import Database, Transaction
from tests.compute.operations.support import begin_stored
from tests.compute.servers.support import sim_store
from tests.support.cloud import DEMO, put_server
from tests.support.full_cloud import FullCloud, build_full_cloud, load_settings, running_worker
from tests.support.soak_delays import DELAYS


class World(Services):
    """The services of the worker, and the server of the operation. `source`: the server's host before a move."""

    cloud: FullCloud
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
        world.config = load_settings()
        world.config.data = str(directory)
        world.db = db
        world.cloud = await build_full_cloud(world, directory, stack, hosts=self.hosts)
        world.server_id = new_id()
        await self.make_server(db, world)
        return world

    async def tear_down(self, world: World) -> None:
        await world.stack.aclose()

    async def make_server(self, db: Database, world: World) -> None:
        """Create the server. By default it is booted."""
        await self.boot_server(db, world)

    async def boot_server(self, db: Database, world: World) -> None:
        await put_building_server(db, world.server_id)
        async with db.transaction() as tx:
            await begin_boot(tx, world)
        async with running_worker(db, world):
            await world.cloud.wait_until_settled(world.server_id)

    async def begin(self, tx: Transaction, world: World) -> str:
        return await begin_stored(tx, self.operation, self.params, server_id=world.server_id, project_id=DEMO)

    async def list_resources(self, db: Database, world: World) -> Any:
        """All resources of servers, and the server's state. Without ids, which are random."""
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
            "running": sorted(await find_running(db, [world.server_id])),
            **self.state(server),
        }

    def state(self, server: dict[str, Any]) -> dict[str, Any]:
        return {"vm_state": server["vm_state"], "power_state": server["power_state"], "deleted": server["deleted"]}


class OnOneDatabase:
    """For variants of tests that run on both databases."""

    @pytest.fixture
    def database_url(self, sqlite_url: str) -> str:
        return sqlite_url


class Variant(OnOneDatabase):
    """Another server or other parameters for steps that are tested already: without kills, on one database."""

    test_killed_at_each_step: ClassVar[Any] = None

    def killed_at_each_undo(self) -> list[Faults]:
        return []


async def put_building_server(db: Database, server_id: str, specs: dict[str, str] | None = None, **values: Any) -> None:
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


async def begin_boot(tx: Transaction, world: World, destination: dict[str, Any] | None = None) -> str:
    network = {"network_id": world.cloud.network_id, "label": "private", "port": None, "fixed_ip": None, "tag": None}
    params = {"networks": [network], "security_groups": ["default"], "destination": destination}
    return await begin_stored(tx, Boot, params, server_id=world.server_id, project_id=DEMO)


async def run_operation(db: Database, world: World, operation: type[Operation], **params: Any) -> None:
    """Run another operation of the world's server to its end."""
    async with db.transaction() as tx:
        await begin_stored(tx, operation, params, server_id=world.server_id, project_id=DEMO, user_id="member-id")
    async with running_worker(db, world):
        await world.cloud.wait_until_settled(world.server_id)


Operations = tuple[tuple[type[Operation], dict[str, Any]], ...]
"""Operations and their parameters."""
PASSWORD = "correct horse"


class GuestOperation(ServerOperation):
    """Resources with rescues, deferred cleanup, stored passwords and images. `before`: operations that run first."""

    before: ClassVar[Operations] = ()
    hosts = 1

    async def make_server(self, db: Database, world: World) -> None:
        await put_building_server(db, world.server_id, image_id=world.cloud.image_id, name="s")
        await run_operation(db, world, Boot, networks=[], security_groups=[], destination=None)
        for operation, params in self.before:
            await run_operation(db, world, operation, **params)
        failures = await db.fetch("SELECT kind, error FROM operations WHERE state <> 'done'")
        assert not failures

    async def list_resources(self, db: Database, world: World) -> Any:
        with sim_store(world.cloud) as sim:
            (host,) = sim.hosts()
            rescue = sim.rescue(host, world.server_id)
        finished = await db.fetch("SELECT params FROM operations WHERE finished_at IS NOT NULL")
        deferred = "SELECT kind FROM operations WHERE server_id IS NULL AND kind <> 'delete_image'"
        return {
            **await super().list_resources(db, world),
            "rescue": rescue,
            "deferred": await db.fetch(deferred),
            "stored passwords": [row for row in finished if PASSWORD in row["params"]],
            "images": await db.fetch("SELECT name, status FROM images WHERE status <> 'deleted' ORDER BY 1"),
        }


class MoveOperation(ServerOperation):
    """Resources with names of hosts. The outcome calls them source and destination."""

    __test__ = False
    move_type: ClassVar[str]

    async def prepare(self, db: Database) -> World:
        world = await super().prepare(db)
        world.source = await db.fetch_value("SELECT host FROM servers WHERE id = $1", world.server_id)
        return world

    async def begin(self, tx: Transaction, world: World) -> str:
        server = Server.decode_optional(await tx.fetch_one("SELECT * FROM servers WHERE id = $1", world.server_id))
        assert server is not None
        return await begin_move(
            tx,
            self.operation,
            server,
            type=self.move_type,
            params=convert(self.params, self.operation.params_type),
            user_id="member-id",
            request_id="req-move",
        )

    async def list_resources(self, db: Database, world: World) -> Any:
        server = await db.fetch_one("SELECT * FROM servers WHERE id = $1", world.server_id)
        assert server is not None
        return {
            "server": {name: server[name] for name in ("vm_state", "power_state", "host", "flavor_id", "vcpus")},
            "allocations": await db.fetch(_ALLOCATIONS, world.server_id),
            "ports": await db.fetch("SELECT host_id FROM ports WHERE device_id = $1", world.server_id),
            "standby bindings": await db.fetch("SELECT host FROM standby_bindings"),
            "guests": [(host, power) for host, power in (await world.cloud.guests()).values()],
            "slots": [host for host, _ in await world.cloud.list_slots()],
            "images": await db.fetch_value("SELECT COUNT(*) FROM images WHERE status <> 'deleted'"),
            "deferred": await db.fetch("SELECT kind FROM operations WHERE finished_at IS NULL AND server_id IS NULL"),
        }

    async def outcome(self, db: Database, world: World) -> Any:
        text = orjson.dumps(await self.list_resources(db, world)).decode()
        other = {"sim-001": "sim-002", "sim-002": "sim-001"}[world.source]
        return text.replace(world.source, "source").replace(other, "destination")


_ALLOCATIONS = """
SELECT c.type, CASE WHEN c.uuid = $1 THEN 1 ELSE 0 END AS of_server, p.name, a.resource_class, a.used FROM allocations a
JOIN consumers c ON c.uuid = a.consumer_uuid JOIN resource_providers p ON p.id = a.provider_id ORDER BY 1, 3, 4
"""
