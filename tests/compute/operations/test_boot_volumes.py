"""Booting with volumes and deleting such a server: each step twice, failed with nothing left behind, and killed."""

from __future__ import annotations

from typing import Any, ClassVar

from kilonova import clock
from kilonova.compute.block_devices import model as devices
from kilonova.compute.operations.boot import Boot
from kilonova.compute.operations.delete import Delete
from kilonova.compute.operations.new_volumes import DEVICE
from kilonova.ids import new_id
from kilonova.operations import Operation, begin
from kilonova.store import Database, Transaction
from tests.compute.operations.volume_worlds import make_volume
from tests.compute.operations.worlds import ServerOperation, World, put_building
from tests.support.cloud import DEMO
from tests.support.whole import working


class WithNewVolumes(ServerOperation):
    """Of an image to boot from, of nothing, and one that the user has given."""

    __test__ = False

    async def make_server(self, db: Database, world: World) -> None:
        await put_building(db, world.server_id)
        async with working(db, world):
            given = await make_volume(db, world, "given")
        image = {"source_type": "image", "source_id": world.cloud.image_id, "boot_index": 0}
        async with db.transaction() as tx:
            await devices.insert(
                tx,
                [
                    _device(world, "/dev/vda", **image, delete_on_termination=True),
                    _device(world, "/dev/vdb", source_type="blank", volume_size=2),
                    _device(world, "/dev/vdc", source_type="volume", source_id=given, volume_id=given),
                ],
            )

    async def boot(self, tx: Transaction, world: World) -> str:
        network = {"network_id": world.cloud.network_id, "label": "private", "port": None, "fixed_ip": None}
        params = {"networks": [{**network, "tag": None}], "security_groups": ["default"], "destination": None}
        params["devices"] = True
        return await begin(tx, Boot, params=params, server_id=world.server_id, project_id=DEMO)

    async def waiting(self, db: Database, world: World, op: str) -> None:
        """Nobody tells it: it asks again."""

    async def volumes(self, db: Database, world: World) -> Any:
        """What there is of volumes, but for those that are about to go, and what the server knows of them."""
        return {
            "volumes": await db.fetch(_VOLUMES),
            "attachments": [
                (row["status"], row["mode"], row["host"] is not None)
                for row in await db.fetch("SELECT * FROM volume_attachments ORDER BY status")
            ],
            "devices": [
                (row["device_name"], row["volume_id"] is None, row["attachment_id"] is None, row["connection"] is None)
                for row in await devices.of_server(db, world.server_id)
            ],
            "in guests": sorted(
                len(guest.volumes) for _, guest in await world.cloud.everything() if guest.id == world.server_id
            ),
        }


_VOLUMES = """
SELECT size, status, bootable, project_id FROM volumes WHERE status <> 'deleting' ORDER BY size, status, bootable
"""


def _device(world: World, name: str, **values: Any) -> dict[str, Any]:
    fixed = {"uuid": new_id(), "server_id": world.server_id, "destination_type": "volume", "device_name": name}
    usual = {"volume_size": 1, "delete_on_termination": False, "multiattach": False, "created_at": clock.now()}
    return {**fixed, **usual, **values}


class TestBootWithVolumes(WithNewVolumes):
    __test__ = True
    operation: ClassVar[type[Operation]] = Boot
    left_behind = False

    async def begin(self, tx: Transaction, world: World) -> str:
        return await self.boot(tx, world)

    async def census(self, db: Database, world: World) -> Any:
        return {**await super().census(db, world), **await self.volumes(db, world)}

    async def outcome(self, db: Database, world: World) -> Any:
        seen = await self.census(db, world)
        if not seen["active"]:
            return seen
        assert [volume["status"] for volume in seen["volumes"]] == ["in-use"] * 3, seen
        assert {volume["project_id"] for volume in seen["volumes"]} == {DEMO}, seen
        assert seen["attachments"] == [("attached", "rw", True)] * 3, seen
        assert seen["in guests"] == [3], seen
        # Of a server that boots from a volume the host's own disk is not asked.
        assert [share["resource_class"] for share in seen["allocations"]] == ["MEMORY_MB", "VCPU"], seen
        made = await db.fetch_value("SELECT COUNT(*) FROM volume_metadata WHERE key = $1", DEVICE)
        assert made == 2, seen
        return seen

    async def prepare(self, db: Database) -> World:
        """One of the volumes is there already, of a run that died before it could write that down."""
        world = await super().prepare(db)
        found = await devices.of_server(db, world.server_id)
        blank = next(device for device in found if device["source_type"] == "blank")
        if self.left_behind:
            async with working(db, world):
                await make_volume(db, world, "", size=2, metadata={DEVICE: blank["uuid"]})
        return world

    def test_what_an_earlier_run_made_is_found(self, sqlite_url: str) -> None:
        self.left_behind = True
        self._ends_well(sqlite_url)

    def state(self, server: dict[str, Any]) -> dict[str, Any]:
        """A failed boot leaves the server in error, and that is all it leaves."""
        return {"active": server["vm_state"] == "active", "power_state": server["power_state"]}


class TestDeleteWithVolumes(WithNewVolumes):
    __test__ = True
    operation: ClassVar[type[Operation]] = Delete

    async def make_server(self, db: Database, world: World) -> None:
        await super().make_server(db, world)
        async with db.transaction() as tx:
            await self.boot(tx, world)
        async with working(db, world):
            shown = await world.cloud.settled(world.server_id)
        assert shown["status"] == "ACTIVE", shown

    async def census(self, db: Database, world: World) -> Any:
        """A delete only goes forward: one that failed keeps its server, so that nothing of it is without an owner."""
        server = await db.fetch_one("SELECT * FROM servers WHERE id = $1", world.server_id)
        assert server is not None
        return {"deleted": server["deleted"], **(await self.volumes(db, world) if server["deleted"] else {})}

    async def outcome(self, db: Database, world: World) -> Any:
        seen = await self.census(db, world)
        if seen["deleted"]:
            # What was made of the image went with the server; the others are free.
            assert [(volume["size"], volume["status"]) for volume in seen["volumes"]] == [
                (1, "available"),
                (2, "available"),
            ], seen
            assert not seen["attachments"] and not seen["devices"], seen  # noqa: PT018
        return seen
