"""Re-image, from its table: each step twice, failed with the old data or without any, and killed."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import pytest

from kilonova.compute.block_devices import model as devices
from kilonova.compute.operations.rebuild import Rebuild
from kilonova.compute.operations.reimage import REIMAGE, Reimage
from kilonova.operations import Operation, begin
from kilonova.operations.running import FORWARD
from kilonova.operations.testing import POINTS, Fault, Injection
from kilonova.store import Database, Transaction
from tests.compute.operations.test_silence import all_done
from tests.compute.operations.worlds import OnceMore, ServerOperation, World
from tests.support import run
from tests.support.cloud import DEMO
from tests.support.databases import opened
from tests.support.volumes import attachments, boot_from, content, device, filled, make_image, volume
from tests.support.whole import PATIENCE, working

OLD, NEW = b"old" * 1000, b"new" * 1000
COLUMNS = {"image_id": None, "image_properties": '{"os_distro":"plan9"}', "name": "again", "metadata": '{"a":"b"}'}
# How a server can be that boots from a volume and has another one: with all of both, or without its guest.
WHOLE = {"server": "active", "guests": ["running"], "root": ("in-use", True), "data": ("in-use", True)}
LOST = {"server": "error", "guests": [], "root": ("reserved", False), "data": ("in-use", True)}


class TestReimage(ServerOperation):
    """What fails leaves the server in one of two ways; `test_what_a_failure_leaves` says when in which."""

    __test__ = True
    operation: ClassVar[type[Operation]] = Reimage
    hosts = 1

    image_id: str
    root_id: str
    data_id: str

    async def make_server(self, db: Database, world: World) -> None:
        old = await make_image(world.cloud, OLD)
        async with working(db, world):
            server = await boot_from(
                world.cloud, device("image", old, volume_size=1), device("blank", None, volume_size=1)
            )
        world.server_id = server["id"]
        self.image_id = await make_image(world.cloud, NEW)
        self.root_id, self.data_id = (one["id"] for one in server["os-extended-volumes:volumes_attached"])

    async def begin(self, tx: Transaction, world: World) -> str:
        params = {
            "columns": COLUMNS,
            "volume_id": self.root_id,
            "image_id": self.image_id,
            "image_bytes": len(NEW),
        }
        return await begin(tx, self.operation, params=params, server_id=world.server_id, project_id=DEMO)

    async def waiting(self, db: Database, world: World, op: str) -> None:
        """The volume service tells, by itself."""

    async def found(self, db: Database, world: World) -> dict[str, Any]:
        server = await db.fetch_one("SELECT * FROM servers WHERE id = $1", world.server_id)
        assert server is not None
        return {
            "server": server["vm_state"],
            "guests": [power for _, power in (await world.cloud.guests()).values()],
            "root": await self.held(db, world, self.root_id),
            "data": await self.held(db, world, self.data_id),
        }

    async def held(self, db: Database, world: World, volume_id: str) -> tuple[str, bool]:
        """The volume's status, and whether it is connected; compute and the volume service agree about that."""
        (attachment,) = await attachments(world.cloud, volume_id)
        row = await devices.of_volume(db, world.server_id, volume_id)
        assert row is not None
        assert row["attachment_id"] == attachment["id"]
        assert bool(row["connection"]) == bool(attachment["connection_info"]) == (attachment["status"] == "attached")
        async with working(db, world):  # what the volume service was asked to do
            async with asyncio.timeout(PATIENCE):
                while (status := (await volume(world.cloud, volume_id))["status"]) == "downloading":
                    await asyncio.sleep(0.01)
        return status, bool(row["connection"])

    async def census(self, db: Database, world: World) -> Any:
        found = await self.found(db, world)
        return {
            "sound": found in (WHOLE, LOST) or found,
            "kept": await world.cloud.kept(),
            "left": await db.fetch("SELECT kind FROM operations WHERE finished_at IS NULL AND kind LIKE '% guest'"),
            "allocations": await db.fetch("SELECT resource_class, used FROM allocations ORDER BY 1"),
        }

    async def outcome(self, db: Database, world: World) -> Any:
        async with working(db, world):  # what the last transaction has begun
            await all_done(world.cloud)
        server = await db.fetch_one("SELECT * FROM servers WHERE id = $1", world.server_id)
        assert server is not None
        return {
            **await self.found(db, world),
            **{name: server[name] for name in COLUMNS},
            "is new": await content(world.cloud, self.root_id) == filled(NEW),
            "kept": await world.cloud.kept(),
        }


class TestRebuildAroundVolume(OnceMore, TestReimage):
    """The same server, with another operation: its data stays."""

    _expected: ClassVar[Any] = None
    operation: ClassVar[type[Operation]] = Rebuild

    async def begin(self, tx: Transaction, world: World) -> str:
        return await begin(tx, Rebuild, params={"columns": COLUMNS}, server_id=world.server_id, project_id=DEMO)


@pytest.mark.parametrize("point", POINTS)
def test_what_a_failure_leaves(sqlite_url: str, point: str) -> None:
    """Up to the moment at which the volume service agrees, everything as it was; after it, only what is safe."""

    async def scenario() -> None:
        test = TestReimage()
        names = Reimage.table().names
        async with opened(sqlite_url) as db:
            world = await test.prepare(db)
            try:
                for step in names:
                    result = await test._try(db, world, Injection("reimage", [failing(step, point)]))
                    assert result.row["state"] == "failed"
                    place = names.index(step) - (point == "before")
                    lost = place >= names.index(REIMAGE)
                    assert await test.found(db, world) == (LOST if lost else WHOLE), step
                    expected = filled(NEW if place > names.index(REIMAGE) else OLD)
                    if place != names.index(REIMAGE):
                        assert await content(world.cloud, test.root_id) == expected, step
                (result,) = [await test._try(db, world, Injection("reimage", []))]
                assert (result.row["state"], await test.found(db, world)) == ("done", WHOLE), "from error"
            finally:
                await test.dismantle(world)

    run(scenario())


def failing(step: str, point: str) -> Fault:
    return Fault("fail", FORWARD, point, frozenset({step}))
