"""A world whose server boots from a volume and has another one for data, and what is counted of them."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from kilonova import clock
from kilonova.compute.block_devices import model as devices
from kilonova.compute.operations import volumes
from kilonova.compute.operations.boot import Boot
from kilonova.ids import new_id
from kilonova.operations import begin
from kilonova.operations.testing import Fault, OperationTests
from kilonova.store import Database
from tests.compute.operations.worlds import World, put_building
from tests.support.cloud import DEMO
from tests.support.whole import PATIENCE, working

NAMES = ("root", "data")


class WithVolumes(OperationTests):
    """In front of a test of an operation."""

    shared: ClassVar[bool] = False

    async def boot_server(self, db: Database, world: World) -> None:
        async with working(db, world):
            await make_server(db, world, shared=self.shared)

    async def prepare(self, db: Database) -> World:
        world: World = await super().prepare(db)
        self.world = world
        return world

    async def census(self, db: Database, world: World) -> Any:
        return {**await super().census(db, world), "volumes": await census(db, world)}

    def test_one_writer_at_every_step(self, sqlite_url: str) -> None:
        """On the way there, and on the way back from its end."""
        watch = Watch(self)
        asyncio.run(self._carry_out(sqlite_url, [(watch, self._last())]))
        assert watch.looks > 2 * len(self.operation.table().names) - 2
        assert watch.wrong == []

    def lost(self, world: World) -> str | None:
        """The host that nobody can speak to, whatever runs there."""
        return None


class Watch(Fault):
    """Looks at the world before and after every step, there and back."""

    def __init__(self, tests: WithVolumes) -> None:
        super().__init__("look", "", "", frozenset())
        self.wrong: list[Any] = []
        self.looks = 0
        self._tests = tests

    async def at(self, point: str, phase: str, step: str) -> None:
        world = self._tests.world
        running: dict[str, set[str]] = {}
        for host, guest in await world.cloud.everything():
            for volume_id in guest.volumes if guest.power == "running" and host != self._tests.lost(world) else ():
                running.setdefault(volume_id, set()).add(host)
        for device in await devices.volumes_of(world.db, world.server_id):
            sql = "SELECT status, host FROM volume_attachments WHERE volume_id = $1 AND server_id = $2"
            there = await world.db.fetch(sql, device["volume_id"], world.server_id)
            writers = running.get(device["volume_id"], set())
            connected = {one["host"] for one in there if one["status"] != "reserved"}
            if not there or len(writers) > 1 or not writers <= connected:
                self.wrong.append((point, phase, step, there, writers))
        self.looks += 1


async def make_volume(db: Database, world: World, name: str, **keys: Any) -> str:
    """A volume of the server's project that is available."""
    auth = await world.identity.auth(DEMO)
    made = await world.volume.create({"name": name, "size": 1, **keys}, auth)
    async with asyncio.timeout(PATIENCE):
        while (shown := await world.volume.show(made["id"], auth)) is None or shown["status"] != "available":
            await asyncio.sleep(0.005)
    return str(made["id"])


def device_of(server_id: str, volume_id: str, *, root: bool, shared: bool = False) -> dict[str, Any]:
    return {
        "uuid": new_id(),
        "server_id": server_id,
        "source_type": "volume",
        "destination_type": "volume",
        "source_id": volume_id,
        "volume_id": volume_id,
        "volume_size": 1,
        "device_name": "/dev/vda" if root else "/dev/vdb",
        "boot_index": 0 if root else None,
        "delete_on_termination": False,
        "multiattach": shared and not root,
        "created_at": clock.now(),
    }


async def make_server(db: Database, world: World, *, shared: bool = False) -> None:
    """Booted in the ordinary way, while a worker runs. `shared`: others may have the volume for data too."""
    await put_building(db, world.server_id)
    made = []
    for name in NAMES:
        volume_id = await make_volume(db, world, name)
        made.append(device_of(world.server_id, volume_id, root=name == "root", shared=shared))
    if shared:
        async with db.transaction() as tx:
            await tx.execute("UPDATE volumes SET multiattach = TRUE WHERE name = 'data'")
    network = {"network_id": world.cloud.network_id, "label": "private", "port": None, "fixed_ip": None, "tag": None}
    params = {"networks": [network], "security_groups": ["default"], "destination": None, "devices": True}
    async with db.transaction() as tx:
        await devices.insert(tx, made)
        await begin(tx, Boot, params=params, server_id=world.server_id, project_id=DEMO)
    shown = await world.cloud.settled(world.server_id)
    assert shown["status"] == "ACTIVE", shown


async def census(db: Database, world: World) -> Any:
    """Of each volume: its status, its attachments, and what device and guests know of it. Ids are left out."""
    found = {}
    rows = await db.fetch("SELECT id, name, status FROM volumes ORDER BY name")
    everything = await world.cloud.everything()
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
            "named": device is not None and device["attachment_id"] in [one["id"] for one in attachments],
            "way to": volumes.way_of(device).get(volumes.HOST) if device else None,
            "standby": bool(device and device["standby"]),
            "in guests": sorted(
                ((bool(guest.slot), host) for host, guest in everything if row["id"] in guest.volumes),
                # Whatever hosts are called: they lose their names in outcomes.
                key=lambda one: (one[0], one[1] != getattr(world, "source", None)),
            ),
        }
    return found


def sound(found: Any, host: str | None) -> None:
    """What must be true of every server at rest: one attachment a volume, and to the server's host."""
    for name in NAMES:
        seen = found[name]
        expected = ("attached", host) if host else ("reserved", None)
        assert (seen["attachments"], seen["named"], seen["standby"]) == ([expected], True, False), (name, seen)
        assert (seen["status"], seen["way to"]) == (("in-use", host) if host else ("reserved", None)), (name, seen)
