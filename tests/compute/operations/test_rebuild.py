"""Rebuild, from its table: each step twice, failed with the old disk as it was, and killed."""

from __future__ import annotations

from typing import Any, ClassVar

import orjson

from kilonova.compute.operations.rebuild import Rebuild
from kilonova.compute.operations.stop import Stop
from kilonova.operations import Operation
from kilonova.store import Database
from tests.compute.operations.test_silence import all_done
from tests.compute.operations.worlds import OnceMore, ServerOperation, World, carry_out
from tests.compute.servers.support import hypervisors
from tests.support.whole import working

COLUMNS = {
    "image_id": "70a599e0-31e7-49b7-b260-868f441e862b",
    "image_properties": '{"disk_format":"qcow2"}',
    "name": "again",
    "metadata": '{"a":"b"}',
    "key_name": None,
    "public_key": None,
}


class TestRebuild(ServerOperation):
    """Counts with the disk, the slots, and what the row says."""

    __test__ = True
    operation: ClassVar[type[Operation]] = Rebuild
    params: ClassVar[dict[str, Any]] = {"columns": COLUMNS}
    hosts = 1

    async def prepare(self, db: Database) -> World:
        world = await super().prepare(db)
        ((_, state),) = await world.cloud.everything()
        world.source = state.disk
        return world

    async def census(self, db: Database, world: World) -> Any:
        server = await db.fetch_one("SELECT * FROM servers WHERE id = $1", world.server_id)
        assert server is not None
        found = await world.cloud.everything()
        return {
            **await super().census(db, world),
            **{name: server[name] for name in COLUMNS},
            "launched": server["launched_at"],
            "machines": [(host, state.name, bool(state.slot), state.disk) for host, state in found],
            "ports": await db.fetch("SELECT host_id, status FROM ports WHERE device_id = $1", world.server_id),
            "left": await db.fetch("SELECT kind FROM operations WHERE finished_at IS NULL AND server_id IS NULL"),
        }

    async def outcome(self, db: Database, world: World) -> Any:
        """The new disk's name is random, as is the time; both are not the old ones."""
        async with working(db, world):  # what the last transaction has begun
            await all_done(world.cloud)
        found = orjson.loads(orjson.dumps(await self.census(db, world)))
        machines = [[*what, disk == world.source] for *what, disk in found["machines"]]
        return {**found, "machines": machines, "launched": bool(found["launched"])}


class TestRebuildStopped(OnceMore, TestRebuild):
    _expected: ClassVar[Any] = None

    async def make_server(self, db: Database, world: World) -> None:
        await super().make_server(db, world)
        await carry_out(db, world, Stop)


class TestRebuildWithoutGuest(OnceMore, TestRebuild):
    """The host has lost it: nothing is put aside, and what fails leaves nothing."""

    _expected: ClassVar[Any] = None

    async def prepare(self, db: Database) -> World:
        world = await super().prepare(db)
        with hypervisors(world.cloud) as store:
            store.remove_guest("sim-001", world.server_id)
        return world
