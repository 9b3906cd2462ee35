"""A world whose server has a root volume and a data volume, and lists of their resources."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from kilonova import clock
from kilonova.compute.block_devices import model as devices
from kilonova.compute.block_devices.model import BlockDevice
from kilonova.compute.operations.boot import Boot
from kilonova.ids import new_id
from kilonova.operations.testing import Fault, OperationTests
from kilonova.store import Database, Transaction
from tests.compute.operations.support import begin_stored
from tests.compute.operations.worlds import ServerOperation, World, put_building_server
from tests.support.cloud import DEMO
from tests.support.full_cloud import TIMEOUT_SECONDS, running_worker

NAMES = ("root", "data")


class WithVolumes(OperationTests):
    """Mixin for tests of operations. `shared`: the data volume is multi-attach."""

    shared: ClassVar[bool] = False

    async def boot_server(self, db: Database, world: World) -> None:
        async with running_worker(db, world):
            await make_server(db, world, shared=self.shared)

    async def prepare(self, db: Database) -> World:
        world: World = await super().prepare(db)
        self.world = world
        return world

    async def list_resources(self, db: Database, world: World) -> Any:
        return {**await super().list_resources(db, world), "volumes": await list_resources(db, world)}

    def test_one_writer_at_every_step(self, sqlite_url: str) -> None:
        """Forward through all steps, and back through all undos."""
        watch = WriterWatch(self)
        asyncio.run(self._run_operations(sqlite_url, [(watch, self._last_step_fault())]))
        assert watch.checks > 2 * len(self.operation.table().names) - 2
        assert watch.violations == []

    def unreachable_host(self, world: World) -> str | None:
        """A host whose guests are ignored because it cannot be called."""
        return None


class WriterWatch(Fault):
    """Checks before and after every step and undo that each volume is attached and has at most one writer."""

    def __init__(self, tests: WithVolumes) -> None:
        super().__init__("watch", "", "", frozenset())
        self.violations: list[Any] = []
        self.checks = 0
        self._tests = tests

    async def at(self, point: str, phase: str, step: str) -> None:
        world = self._tests.world
        running: dict[str, set[str]] = {}
        for host, guest in await world.cloud.list_guests_and_slots():
            if guest.power == "running" and host != self._tests.unreachable_host(world):
                for volume_id in guest.volumes:
                    running.setdefault(volume_id, set()).add(host)
        for device in await devices.volumes_of(world.db, world.server_id):
            sql = "SELECT status, host FROM volume_attachments WHERE volume_id = $1 AND server_id = $2"
            attachments = await world.db.fetch(sql, device.volume_id, world.server_id)
            writers = running.get(device.volume, set())
            connected = {one["host"] for one in attachments if one["status"] != "reserved"}
            if not attachments or len(writers) > 1 or not writers <= connected:
                self.violations.append((point, phase, step, attachments, writers))
        self.checks += 1


async def make_volume(db: Database, world: World, name: str, **keys: Any) -> str:
    """Create a volume in the server's project; returns its id when it is available."""
    auth = await world.identity.auth(DEMO)
    made = await world.volume.create({"name": name, "size": 1, **keys}, auth)
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while (shown := await world.volume.show(made.id, auth)) is None or shown.status != "available":
            await asyncio.sleep(0.005)
    return made.id


def device_of(server_id: str, volume_id: str, *, root: bool, shared: bool = False) -> BlockDevice:
    return BlockDevice(
        uuid=new_id(),
        server_id=server_id,
        source_type="volume",
        destination_type="volume",
        source_id=volume_id,
        volume_id=volume_id,
        volume_size=1,
        device_name="/dev/vda" if root else "/dev/vdb",
        boot_index=0 if root else None,
        delete_on_termination=False,
        multiattach=shared and not root,
        created_at=clock.now(),
    )


async def make_server(db: Database, world: World, *, shared: bool = False) -> None:
    """Boot the server; a worker must run. `shared`: the data volume is multi-attach."""
    await put_building_server(db, world.server_id)
    rows = []
    for name in NAMES:
        volume_id = await make_volume(db, world, name)
        rows.append(device_of(world.server_id, volume_id, root=name == "root", shared=shared))
    if shared:
        async with db.transaction() as tx:
            await tx.execute("UPDATE volumes SET multiattach = TRUE WHERE name = 'data'")
    network = {"network_id": world.cloud.network_id, "label": "private", "port": None, "fixed_ip": None, "tag": None}
    params = {"networks": [network], "security_groups": ["default"], "destination": None, "devices": True}
    async with db.transaction() as tx:
        await devices.insert(tx, rows)
        await begin_stored(tx, Boot, params, server_id=world.server_id, project_id=DEMO)
    shown = await world.cloud.wait_until_settled(world.server_id)
    assert shown["status"] == "ACTIVE", shown


async def list_resources(db: Database, world: World) -> Any:
    """By volume: its status and attachments, its block device, and the guests that have it. Without ids."""
    found = {}
    rows = await db.fetch("SELECT id, name, status FROM volumes ORDER BY name")
    guests = await world.cloud.list_guests_and_slots()
    for row in rows:
        device = await devices.of_volume(db, world.server_id, row["id"])
        attachments = await db.fetch(
            "SELECT * FROM volume_attachments WHERE volume_id = $1 AND server_id = $2 ORDER BY host, status",
            row["id"],
            world.server_id,
        )
        found[row["name"]] = {
            "status": row["status"],
            "attachments": [(one["status"], one["host"]) for one in attachments],
            "in device": device is not None and device.attachment_id in [one["id"] for one in attachments],
            "connected to": device.connected_host or None if device else None,
            "standby": bool(device and device.standby),
            "in guests": sorted(
                ((bool(guest.slot), host) for host, guest in guests if row["id"] in guest.volumes),
                # Not by name, because outcomes replace the names of hosts.
                key=lambda one: (one[0], one[1] != getattr(world, "source", None)),
            ),
        }
    return found


def check_attachments(found: Any, host: str | None) -> None:
    """Each volume of an idle server has one attachment, to the server's host."""
    for name in NAMES:
        seen = found[name]
        expected = ("attached", host) if host else ("reserved", None)
        assert (seen["attachments"], seen["in device"], seen["standby"]) == ([expected], True, False), (name, seen)
        status = "in-use" if host else "reserved"
        assert (seen["status"], seen["connected to"]) == (status, host), (name, seen)


class ServerWithNewVolumes(ServerOperation):
    """A server with a root volume from an image, a blank volume, and a volume of the user."""

    __test__ = False

    async def make_server(self, db: Database, world: World) -> None:
        await put_building_server(db, world.server_id)
        async with running_worker(db, world):
            user_volume = await make_volume(db, world, "user volume")
        image = {"source_type": "image", "source_id": world.cloud.image_id, "boot_index": 0}
        async with db.transaction() as tx:
            await devices.insert(
                tx,
                [
                    _new_device(world, "/dev/vda", **image, delete_on_termination=True),
                    _new_device(world, "/dev/vdb", source_type="blank", volume_size=2),
                    _new_device(world, "/dev/vdc", source_type="volume", source_id=user_volume, volume_id=user_volume),
                ],
            )

    async def begin_boot(self, tx: Transaction, world: World) -> str:
        network = {"network_id": world.cloud.network_id, "label": "private", "port": None, "fixed_ip": None}
        params = {"networks": [{**network, "tag": None}], "security_groups": ["default"], "destination": None}
        params["devices"] = True
        return await begin_stored(tx, Boot, params, server_id=world.server_id, project_id=DEMO)

    async def post_awaited_event(self, db: Database, world: World, op: str) -> None:
        """No event: the operation polls the volume service."""

    async def list_volumes(self, db: Database, world: World) -> Any:
        """All volumes except those being deleted, their attachments, and the server's block devices."""
        return {
            "volumes": await db.fetch(_VOLUMES),
            "attachments": [
                (row["status"], row["mode"], row["host"] is not None)
                for row in await db.fetch("SELECT * FROM volume_attachments ORDER BY status")
            ],
            "devices": [
                (one.device_name, one.volume_id is None, one.attachment_id is None, one.connection is None)
                for one in await devices.of_server(db, world.server_id)
            ],
            "in guests": sorted(
                len(guest.volumes)
                for _, guest in await world.cloud.list_guests_and_slots()
                if guest.id == world.server_id
            ),
        }


_VOLUMES = """
SELECT size, status, bootable, project_id FROM volumes WHERE status <> 'deleting' ORDER BY size, status, bootable
"""


def _new_device(world: World, name: str, **values: Any) -> BlockDevice:
    fixed = {"uuid": new_id(), "server_id": world.server_id, "destination_type": "volume", "device_name": name}
    usual = {"volume_size": 1, "delete_on_termination": False, "multiattach": False, "created_at": clock.now()}
    return BlockDevice(**{**fixed, **usual, **values})
