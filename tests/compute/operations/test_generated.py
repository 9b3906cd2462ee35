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
from kilonova.compute.operations.leftovers import ClearGuest
from kilonova.compute.operations.start import Start
from kilonova.compute.operations.stop import Stop
from kilonova.compute.server_groups import model as groups
from kilonova.config import load
from kilonova.ids import new_id
from kilonova.operations import Operation, begin
from kilonova.operations.testing import OperationTests
from kilonova.operations.views import running_of
from kilonova.placement.changes import facts_changed
from kilonova.placement.names import ensure
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


class TestBootAsAsked(TestBoot):
    """In a group whose other server is elsewhere, on a host that was asked for, with a part of a nested provider."""

    _expected: ClassVar[Any] = None

    async def make_server(self, db: Database, world: World) -> None:
        group_id, neighbour = new_id(), new_id()
        hints = orjson.dumps({"group": group_id}).decode()
        await put_server(db, neighbour, host="sim-001", hypervisor_hostname="sim-001", scheduler_hints=hints)
        await put_building(db, world.server_id, {"resources_GPU:VGPU": "1"}, scheduler_hints=hints)
        async with db.transaction() as tx:
            row = {"id": group_id, "project_id": DEMO, "user_id": "member-id", "name": "g", "policy": "anti-affinity"}
            await groups.create(tx, {**row, "max_server_per_host": None, "created_at": 1.0})
            await groups.join(tx, group_id, [neighbour, world.server_id])
            await add_gpus(tx)

    async def begin(self, tx: Transaction, world: World) -> str:
        return await boot(tx, world, {"host": "sim-002"})

    async def census(self, db: Database, world: World) -> Any:
        providers = await db.fetch(
            "SELECT p.name, a.resource_class FROM allocations a JOIN resource_providers p ON p.id = a.provider_id"
            " ORDER BY 1, 2"
        )
        members = await db.fetch_value("SELECT COUNT(*) FROM server_group_members")
        return {**await super().census(db, world), "providers": providers, "members": members}


async def add_gpus(tx: Transaction) -> None:
    """Every host gets a provider of its own for them."""
    await ensure(tx, "resource_classes", ["VGPU"])
    for host in await tx.fetch("SELECT id, name FROM resource_providers"):
        child: int = await tx.fetch_value(
            "INSERT INTO resource_providers (uuid, name, generation, parent_id, root_id, change, facts, created_at,"
            " updated_at) VALUES ($1, $2, 0, $3, $3, 0, 0, 1, 1) RETURNING id",
            new_id(),
            f"{host['name']}_gpus",
            host["id"],
        )
        await tx.execute(
            "INSERT INTO inventories (provider_id, resource_class, total, reserved, min_unit, max_unit, step_size,"
            " allocation_ratio) VALUES ($1, 'VGPU', 4, 0, 1, 4, 1, 1.0)",
            child,
        )
        await facts_changed(tx, [child])


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


class TestClearGuest(ServerOperation):
    """It only goes forward: what it has destroyed, nobody wants back."""

    __test__ = True
    operation: ClassVar[type[Operation]] = ClearGuest

    async def begin(self, tx: Transaction, world: World) -> str:
        """The server is said to be elsewhere, while its guest is where it was built."""
        host = await tx.fetch_value("SELECT host FROM servers WHERE id = $1", world.server_id)
        await tx.execute("UPDATE servers SET host = 'elsewhere' WHERE id = $1", world.server_id)
        boot = await tx.fetch_one("SELECT id, round, epoch FROM operations WHERE kind = 'boot'")
        assert boot is not None
        command = {"operation": boot["id"], "round": boot["round"], "epoch": boot["epoch"] + 1}
        return await begin(tx, ClearGuest, params={"guest_id": world.server_id, "host": host, **command})

    async def census(self, db: Database, world: World) -> Any:
        return await db.fetch("SELECT resource_class, used FROM allocations ORDER BY 1")

    async def outcome(self, db: Database, world: World) -> Any:
        return await world.cloud.guests()
