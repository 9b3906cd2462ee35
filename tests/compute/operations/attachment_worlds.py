"""Worlds with a server, running or on no host, and volumes that come to it and go."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from kilonova.compute.block_devices import model as devices
from kilonova.compute.operations.attach_volume import AttachVolume
from kilonova.compute.operations.offload import Offload
from kilonova.compute.operations.shelve import Shelve
from kilonova.operations import Operation, begin
from kilonova.store import Database, Transaction
from tests.compute.operations import volume_worlds
from tests.compute.operations.worlds import ServerOperation, World, boot, carry_out, put_building
from tests.support.cloud import DEMO
from tests.support.whole import PATIENCE, working


class VolumeOperation(ServerOperation):
    """`before`: what is done to the server first. `attached`: whether it has the volume `data` then."""

    __test__ = False
    hosts: ClassVar[int] = 1
    before: ClassVar[tuple[type[Operation], ...]] = ()
    attached: ClassVar[bool] = True
    names: ClassVar[tuple[str, ...]] = ("data",)

    async def prepare(self, db: Database) -> World:
        world = await super().prepare(db)
        world.config.compute.shelved_offload_seconds = -1  # only when somebody asks for it
        async with working(db, world):
            self.volumes = {name: await volume_worlds.make_volume(db, world, name) for name in self.names}
        for operation in self.before:
            await carry_out(db, world, operation)
        if self.attached:
            async with db.transaction() as tx:
                await begin_attach(tx, world, self.volumes["data"])
            async with working(db, world):
                await idle(db, world)
        return world

    async def make_server(self, db: Database, world: World) -> None:
        await put_building(db, world.server_id, image_id=world.cloud.image_id)
        async with db.transaction() as tx:
            await boot(tx, world)
        async with working(db, world):
            await world.cloud.settled(world.server_id)

    def check_end(self, seen: Any) -> None:
        """What the census says after a success."""
        raise NotImplementedError

    def test_its_end(self) -> None:
        cls = type(self)
        if cls._expected is None:
            cls._expected = asyncio.run(self._undisturbed())
        self.check_end(cls._expected.outcome)

    async def census(self, db: Database, world: World) -> Any:
        held = await super().census(db, world)
        return {
            **held,
            "volumes": await volume_worlds.census(db, world),
            "devices": await db.fetch("SELECT device_name, volume_size FROM block_devices ORDER BY id"),
            "left": await db.fetch("SELECT kind FROM operations WHERE finished_at IS NULL AND server_id IS NULL"),
        }


async def begin_attach(tx: Transaction, world: World, volume_id: str) -> str:
    device = volume_worlds.device_of(world.server_id, volume_id, root=False)
    await devices.insert(tx, [device])
    return await begin(tx, AttachVolume, params={"device": device["uuid"]}, server_id=world.server_id, project_id=DEMO)


async def idle(db: Database, world: World) -> None:
    """Nothing is done to the server any more, not even beside others."""
    sql = "SELECT COUNT(*) FROM operations WHERE server_id = $1 AND finished_at IS NULL"
    async with asyncio.timeout(PATIENCE):
        while await db.fetch_value(sql, world.server_id):
            await asyncio.sleep(0.01)


async def device_uuid(tx: Transaction, world: World, volume_id: str) -> str:
    device = await devices.of_volume(tx, world.server_id, volume_id)
    assert device is not None
    return str(device["uuid"])


OFFLOADED: tuple[type[Operation], ...] = (Shelve, Offload)
