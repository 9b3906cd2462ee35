"""Worlds for attaching and detaching volumes: a server, running or offloaded, and its volumes."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from kilonova.compute.block_devices import model as devices
from kilonova.compute.operations.attach_volume import AttachVolume
from kilonova.compute.operations.shelve import Offload, Shelve
from kilonova.operations import Operation
from kilonova.store import Database, Transaction
from tests.compute.operations import volume_worlds
from tests.compute.operations.support import begin_stored
from tests.compute.operations.worlds import ServerOperation, World, begin_boot, put_building_server, run_operation
from tests.support.cloud import DEMO
from tests.support.full_cloud import TIMEOUT_SECONDS, running_worker


class VolumeOperation(ServerOperation):
    """`before`: operations that run first. `attached`: whether the volume `data` is attached then."""

    __test__ = False
    hosts: ClassVar[int] = 1
    before: ClassVar[tuple[type[Operation], ...]] = ()
    attached: ClassVar[bool] = True
    names: ClassVar[tuple[str, ...]] = ("data",)

    async def prepare(self, db: Database) -> World:
        world = await super().prepare(db)
        world.config.compute.shelved_offload_seconds = -1  # no automatic offload
        async with running_worker(db, world):
            self.volumes = {name: await volume_worlds.make_volume(db, world, name) for name in self.names}
        for operation in self.before:
            await run_operation(db, world, operation)
        if self.attached:
            async with db.transaction() as tx:
                await begin_attach(tx, world, self.volumes["data"])
            async with running_worker(db, world):
                await wait_until_idle(db, world)
        return world

    async def make_server(self, db: Database, world: World) -> None:
        await put_building_server(db, world.server_id, image_id=world.cloud.image_id)
        async with db.transaction() as tx:
            await begin_boot(tx, world)
        async with running_worker(db, world):
            await world.cloud.wait_until_settled(world.server_id)

    def check_result(self, seen: Any) -> None:
        """Check the result of `list_resources` after a success."""
        raise NotImplementedError

    def test_result(self) -> None:
        cls = type(self)
        if cls._expected is None:
            cls._expected = asyncio.run(self._run_without_faults())
        self.check_result(cls._expected.outcome)

    async def list_resources(self, db: Database, world: World) -> Any:
        return {
            **await super().list_resources(db, world),
            "volumes": await volume_worlds.list_resources(db, world),
            "devices": await db.fetch("SELECT device_name, volume_size FROM block_devices ORDER BY id"),
            "deferred": await db.fetch("SELECT kind FROM operations WHERE finished_at IS NULL AND server_id IS NULL"),
        }


async def begin_attach(tx: Transaction, world: World, volume_id: str) -> str:
    device = volume_worlds.device_of(world.server_id, volume_id, root=False)
    await devices.insert(tx, [device])
    return await begin_stored(tx, AttachVolume, {"device": device.uuid}, server_id=world.server_id, project_id=DEMO)


async def wait_until_idle(db: Database, world: World) -> None:
    """Wait until no operation of the server is unfinished, in any lane."""
    sql = "SELECT COUNT(*) FROM operations WHERE server_id = $1 AND finished_at IS NULL"
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while await db.fetch_value(sql, world.server_id):
            await asyncio.sleep(0.01)


async def device_uuid(tx: Transaction, world: World, volume_id: str) -> str:
    device = await devices.of_volume(tx, world.server_id, volume_id)
    assert device is not None
    return device.uuid


OFFLOADED: tuple[type[Operation], ...] = (Shelve, Offload)
