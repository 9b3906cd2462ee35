"""Generated tests of boot."""

from __future__ import annotations

from typing import Any, ClassVar

import orjson

from kilonova.compute.block_devices import model as devices
from kilonova.compute.operations.boot import Boot
from kilonova.compute.operations.steps.new_volumes import DEVICE
from kilonova.compute.server_groups import model as groups
from kilonova.ids import new_id
from kilonova.operations import Operation
from kilonova.placement.changes import mark_facts_changed
from kilonova.placement.names import ensure_rows
from kilonova.store import Database, Transaction
from tests.compute.operations.volume_worlds import ServerWithNewVolumes, make_volume
from tests.compute.operations.worlds import ServerOperation, Variant, World, begin_boot, put_building_server
from tests.support.cloud import DEMO, put_server
from tests.support.full_cloud import running_worker


async def set_building(tx: Transaction, world: World) -> None:
    """The failed boot of the round before has left the server in error."""
    await tx.execute("UPDATE servers SET vm_state = 'building' WHERE id = $1", world.server_id)


class TestBoot(ServerOperation):
    __test__ = True
    operation: ClassVar[type[Operation]] = Boot

    async def make_server(self, db: Database, world: World) -> None:
        await put_building_server(db, world.server_id)

    async def begin(self, tx: Transaction, world: World) -> str:
        await set_building(tx, world)
        return await begin_boot(tx, world)

    def state(self, server: dict[str, Any]) -> dict[str, Any]:
        """A failed boot leaves the server in error, without resources."""
        return {"active": server["vm_state"] == "active", "power_state": server["power_state"]}


class TestBootToRequestedHost(TestBoot):
    """To a requested host, in an anti-affinity group, with an allocation of a nested provider."""

    _expected: ClassVar[Any] = None

    async def make_server(self, db: Database, world: World) -> None:
        group_id, neighbour = new_id(), new_id()
        hints = orjson.dumps({"group": group_id}).decode()
        await put_server(db, neighbour, host="sim-001", hypervisor_hostname="sim-001", scheduler_hints=hints)
        await put_building_server(db, world.server_id, {"resources_GPU:VGPU": "1"}, scheduler_hints=hints)
        async with db.transaction() as tx:
            group = groups.ServerGroup(group_id, DEMO, "member-id", "g", "anti-affinity", None, 1.0)
            await groups.create(tx, group)
            await groups.join(tx, group_id, [neighbour, world.server_id])
            await add_gpus(tx)

    async def begin(self, tx: Transaction, world: World) -> str:
        await set_building(tx, world)
        return await begin_boot(tx, world, {"host": "sim-002"})

    async def list_resources(self, db: Database, world: World) -> Any:
        providers = await db.fetch(
            "SELECT p.name, a.resource_class FROM allocations a JOIN resource_providers p ON p.id = a.provider_id"
            " ORDER BY 1, 2"
        )
        members = await db.fetch_value("SELECT COUNT(*) FROM server_group_members")
        return {**await super().list_resources(db, world), "providers": providers, "members": members}


async def add_gpus(tx: Transaction) -> None:
    """Add a child provider with GPUs to every host."""
    await ensure_rows(tx, "resource_classes", ["VGPU"])
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
        await mark_facts_changed(tx, [child])


class TestBootWithVolumes(ServerWithNewVolumes):
    __test__ = True
    operation: ClassVar[type[Operation]] = Boot
    volume_exists = False

    async def begin(self, tx: Transaction, world: World) -> str:
        await set_building(tx, world)
        return await self.begin_boot(tx, world)

    async def list_resources(self, db: Database, world: World) -> Any:
        return {**await super().list_resources(db, world), **await self.list_volumes(db, world)}

    async def outcome(self, db: Database, world: World) -> Any:
        seen = await self.list_resources(db, world)
        if not seen["active"]:
            return seen
        assert [volume["status"] for volume in seen["volumes"]] == ["in-use"] * 3, seen
        assert {volume["project_id"] for volume in seen["volumes"]} == {DEMO}, seen
        assert seen["attachments"] == [("attached", "rw", True)] * 3, seen
        assert seen["in guests"] == [3], seen
        # A server that boots from a volume has no DISK_GB allocation.
        assert [row["resource_class"] for row in seen["allocations"]] == ["MEMORY_MB", "VCPU"], seen
        created = await db.fetch_value("SELECT COUNT(*) FROM volume_metadata WHERE key = $1", DEVICE)
        assert created == 2, seen
        return seen

    async def prepare(self, db: Database) -> World:
        """If `volume_exists`, an earlier run created the blank volume and died before it stored the volume's id."""
        world = await super().prepare(db)
        found = await devices.of_server(db, world.server_id)
        blank = next(device for device in found if device.source_type == "blank")
        if self.volume_exists:
            async with running_worker(db, world):
                await make_volume(db, world, "", size=2, metadata={DEVICE: blank.uuid})
        return world

    def test_boot_reuses_volume_of_earlier_run(self, sqlite_url: str) -> None:
        self.volume_exists = True
        self._expect_success(sqlite_url)

    def state(self, server: dict[str, Any]) -> dict[str, Any]:
        """A failed boot leaves the server in error, without resources."""
        return {"active": server["vm_state"] == "active", "power_state": server["power_state"]}


class TestBootWithVolumesInOneZone(Variant, TestBootWithVolumes):
    """The first run pins the server to the zone of its volumes."""

    _expected: ClassVar[Any] = None

    async def prepare(self, db: Database) -> World:
        world = await super().prepare(db)
        world.config.volume.cross_az_attach = False
        return world

    async def outcome(self, db: Database, world: World) -> Any:
        seen = await super().outcome(db, world)
        if seen["active"]:
            sql = "SELECT pinned_zone FROM servers WHERE id = $1"
            assert await db.fetch_value(sql, world.server_id) == "nova"
        return seen
