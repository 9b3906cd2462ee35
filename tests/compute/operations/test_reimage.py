"""Generated tests of re-imaging a root volume, and the server's state after each failure."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import pytest

from kilonova.compute.block_devices import model as devices
from kilonova.compute.operations.reimage import REIMAGE, Reimage
from kilonova.operations import Operation
from kilonova.operations.execution import FORWARD
from kilonova.operations.testing import POINTS, Fault, Injection
from kilonova.store import Database, Transaction
from tests.compute.operations.support import begin_stored, finish_operations
from tests.compute.operations.worlds import ServerOperation, World
from tests.support import run
from tests.support.cloud import DEMO
from tests.support.databases import opened
from tests.support.full_cloud import TIMEOUT_SECONDS, running_worker
from tests.support.volumes import (
    attachments,
    block_device,
    boot_from,
    expected_checksum,
    make_image,
    show_volume,
    volume_checksum,
)

OLD, NEW = b"old" * 1000, b"new" * 1000
COLUMNS = {"image_id": None, "image_properties": '{"os_distro":"plan9"}', "name": "again", "metadata": '{"a":"b"}'}
# States of a server with a root and a data volume: complete, or without its guest.
COMPLETE = {"server": "active", "guests": ["running"], "root": ("in-use", True), "data": ("in-use", True)}
WITHOUT_GUEST = {"server": "error", "guests": [], "root": ("reserved", False), "data": ("in-use", True)}


class TestReimage(ServerOperation):
    """A failure leaves one of two states; `test_state_after_failure` shows when."""

    __test__ = True
    operation: ClassVar[type[Operation]] = Reimage
    hosts = 1

    image_id: str
    root_id: str
    data_id: str

    async def make_server(self, db: Database, world: World) -> None:
        old = await make_image(world.cloud, OLD)
        async with running_worker(db, world):
            server = await boot_from(
                world.cloud, block_device("image", old, volume_size=1), block_device("blank", None, volume_size=1)
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
        return await begin_stored(tx, self.operation, params, server_id=world.server_id, project_id=DEMO)

    async def post_awaited_event(self, db: Database, world: World, op: str) -> None:
        """The volume service posts the event itself."""

    async def read_state(self, db: Database, world: World) -> dict[str, Any]:
        server = await db.fetch_one("SELECT * FROM servers WHERE id = $1", world.server_id)
        assert server is not None
        return {
            "server": server["vm_state"],
            "guests": [power for _, power in (await world.cloud.guests()).values()],
            "root": await self.volume_state(db, world, self.root_id),
            "data": await self.volume_state(db, world, self.data_id),
        }

    async def volume_state(self, db: Database, world: World, volume_id: str) -> tuple[str, bool]:
        """The volume's status, and whether it is connected, which both services must agree on."""
        (attachment,) = await attachments(world.cloud, volume_id)
        row = await devices.of_volume(db, world.server_id, volume_id)
        assert row is not None
        assert row.attachment_id == attachment["id"]
        assert bool(row.connection) == bool(attachment["connection_info"]) == (attachment["status"] == "attached")
        async with running_worker(db, world):  # for the operations of the volume service
            async with asyncio.timeout(TIMEOUT_SECONDS):
                while (status := (await show_volume(world.cloud, volume_id))["status"]) == "downloading":
                    await asyncio.sleep(0.01)
        return status, bool(row.connection)

    async def list_resources(self, db: Database, world: World) -> Any:
        found = await self.read_state(db, world)
        return {
            "known state": found in (COMPLETE, WITHOUT_GUEST) or found,
            "slots": await world.cloud.list_slots(),
            "deferred": await db.fetch("SELECT kind FROM operations WHERE finished_at IS NULL AND kind LIKE '%_guest'"),
            "allocations": await db.fetch("SELECT resource_class, used FROM allocations ORDER BY 1"),
        }

    async def outcome(self, db: Database, world: World) -> Any:
        async with running_worker(db, world):  # the operations that the last step began
            await finish_operations(world.cloud)
        server = await db.fetch_one("SELECT * FROM servers WHERE id = $1", world.server_id)
        assert server is not None
        return {
            **await self.read_state(db, world),
            **{name: server[name] for name in COLUMNS},
            "has new image": await volume_checksum(world.cloud, self.root_id) == expected_checksum(NEW),
            "slots": await world.cloud.list_slots(),
        }


@pytest.mark.parametrize("point", POINTS)
def test_state_after_failure(sqlite_url: str, point: str) -> None:
    """Complete until the volume service has accepted the re-image, without a guest afterwards."""

    async def scenario() -> None:
        test = TestReimage()
        names = Reimage.table().names
        async with opened(sqlite_url) as db:
            world = await test.prepare(db)
            try:
                for step in names:
                    result = await test._run_operation(db, world, Injection("reimage", [failure_at(step, point)]))
                    assert result.row.state == "failed"
                    position = names.index(step) - (point == "before")
                    accepted = position >= names.index(REIMAGE.name)
                    assert await test.read_state(db, world) == (WITHOUT_GUEST if accepted else COMPLETE), step
                    expected = expected_checksum(NEW if position > names.index(REIMAGE.name) else OLD)
                    if position != names.index(REIMAGE.name):
                        assert await volume_checksum(world.cloud, test.root_id) == expected, step
                result = await test._run_operation(db, world, Injection("reimage", []))
                assert (result.row.state, await test.read_state(db, world)) == ("done", COMPLETE), "from error"
            finally:
                await test.tear_down(world)

    run(scenario())


def failure_at(step: str, point: str) -> Fault:
    return Fault("fail", FORWARD, point, frozenset({step}))
