"""Every operation of compute: each step twice, failed with nothing left behind, and killed."""

from __future__ import annotations

from typing import Any, ClassVar

import orjson

from kilonova.compute.operations.boot import Boot
from kilonova.compute.operations.delete import Delete
from kilonova.compute.operations.leftovers import ClearGuest, ClearSlot
from kilonova.compute.operations.reboot import HardReboot, Reboot
from kilonova.compute.operations.start import Start
from kilonova.compute.operations.stop import Stop
from kilonova.compute.server_groups import model as groups
from kilonova.hosts.messages import Command, Park
from kilonova.ids import new_id
from kilonova.operations import Operation, begin
from kilonova.placement.changes import facts_changed
from kilonova.placement.names import ensure
from kilonova.store import Database, Transaction
from tests.compute.operations.worlds import ServerOperation, World, boot, put_building
from tests.support.cloud import DEMO, put_server
from tests.support.whole import working


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
    slot: ClassVar[str | None] = None

    async def prepare(self, db: Database) -> World:
        world = await super().prepare(db)
        world.source = await db.fetch_value("SELECT host FROM servers WHERE id = $1", world.server_id)
        return world

    async def begin(self, tx: Transaction, world: World) -> str:
        """The server is said to be elsewhere, while its guest is where it was built."""
        await tx.execute("UPDATE servers SET host = 'elsewhere' WHERE id = $1", world.server_id)
        boot = await tx.fetch_one("SELECT id, round, epoch FROM operations WHERE kind = 'boot'")
        assert boot is not None
        command = {"operation": boot["id"], "round": boot["round"], "epoch": boot["epoch"] + 1}
        params = {"guest_id": world.server_id, "host": world.source, "slot": self.slot, **command}
        return await begin(tx, self.operation, params=params)

    async def census(self, db: Database, world: World) -> Any:
        return await db.fetch("SELECT resource_class, used FROM allocations ORDER BY 1")

    async def outcome(self, db: Database, world: World) -> Any:
        return await world.cloud.guests(), await world.cloud.kept()


class TestClearSlot(TestClearGuest):
    """The guest was put aside."""

    operation: ClassVar[type[Operation]] = ClearSlot
    slot: ClassVar[str | None] = "aside"
    _expected: ClassVar[Any] = None

    async def make_server(self, db: Database, world: World) -> None:
        await super().make_server(db, world)
        host = await db.fetch_value("SELECT host FROM servers WHERE id = $1", world.server_id)
        verb = Park(guest_id=world.server_id, slot="aside")
        await world.hosts.call(host, Command(host=host, operation="aside", step="park", epoch=1, verb=verb))
        assert len(await world.cloud.kept()) == 1
