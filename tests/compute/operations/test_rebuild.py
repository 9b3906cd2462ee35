"""Generated tests of rebuild: a failure keeps the old disk."""

from __future__ import annotations

from typing import Any, ClassVar

import orjson

from kilonova.compute.operations.power import Stop
from kilonova.compute.operations.rebuild import Rebuild
from kilonova.operations import Operation
from kilonova.store import Database, Transaction
from tests.compute.operations import test_reimage
from tests.compute.operations.support import begin_stored, finish_operations
from tests.compute.operations.worlds import ServerOperation, Variant, World, run_operation
from tests.compute.servers.support import sim_store
from tests.support.cloud import DEMO
from tests.support.full_cloud import running_worker

COLUMNS = {
    "image_id": "70a599e0-31e7-49b7-b260-868f441e862b",
    "image_properties": '{"disk_format":"qcow2"}',
    "name": "again",
    "metadata": '{"a":"b"}',
    "key_name": None,
    "public_key": None,
}


class TestRebuild(ServerOperation):
    """Resources with the disk, the slots and the changed columns."""

    __test__ = True
    operation: ClassVar[type[Operation]] = Rebuild
    params: ClassVar[dict[str, Any]] = {"columns": COLUMNS}
    hosts = 1

    async def prepare(self, db: Database) -> World:
        world = await super().prepare(db)
        ((_, state),) = await world.cloud.list_guests_and_slots()
        self.old_disk = state.disk
        return world

    async def list_resources(self, db: Database, world: World) -> Any:
        server = await db.fetch_one("SELECT * FROM servers WHERE id = $1", world.server_id)
        assert server is not None
        found = await world.cloud.list_guests_and_slots()
        return {
            **await super().list_resources(db, world),
            **{name: server[name] for name in COLUMNS},
            "launched": server["launched_at"],
            "guests and slots": [(host, state.name, bool(state.slot), state.disk) for host, state in found],
            "ports": await db.fetch("SELECT host_id, status FROM ports WHERE device_id = $1", world.server_id),
            "deferred": await db.fetch("SELECT kind FROM operations WHERE finished_at IS NULL AND server_id IS NULL"),
        }

    async def outcome(self, db: Database, world: World) -> Any:
        """The new disk's name and the launch time are random, so only their change is compared."""
        async with running_worker(db, world):  # the operations that the last step began
            await finish_operations(world.cloud)
        found = orjson.loads(orjson.dumps(await self.list_resources(db, world)))
        guests = [[*guest, disk == self.old_disk] for *guest, disk in found["guests and slots"]]
        return {**found, "guests and slots": guests, "launched": bool(found["launched"])}


class TestRebuildStopped(Variant, TestRebuild):
    _expected: ClassVar[Any] = None

    async def make_server(self, db: Database, world: World) -> None:
        await super().make_server(db, world)
        await run_operation(db, world, Stop)


class TestRebuildWithoutGuest(Variant, TestRebuild):
    """The host has lost the guest: nothing is parked, and a failure leaves no guest."""

    _expected: ClassVar[Any] = None

    async def prepare(self, db: Database) -> World:
        world = await super().prepare(db)
        with sim_store(world.cloud) as store:
            store.remove_guest("sim-001", world.server_id)
        return world


class TestRebuildWithRootVolume(Variant, test_reimage.TestReimage):
    """Rebuild without a new image keeps the data of the root volume."""

    _expected: ClassVar[Any] = None
    operation: ClassVar[type[Operation]] = Rebuild

    async def begin(self, tx: Transaction, world: World) -> str:
        params = {"columns": test_reimage.COLUMNS}
        return await begin_stored(tx, Rebuild, params, server_id=world.server_id, project_id=DEMO)
