"""Shelving, generated: each step twice, failed with nothing left behind, and killed."""

from __future__ import annotations

from typing import Any, ClassVar

import orjson

from kilonova.compute.operations.shelve import Shelve
from kilonova.operations import Operation
from kilonova.store import Database, Transaction
from tests.compute.operations.test_silence import all_done
from tests.compute.operations.worlds import MoveOperation, ServerOperation, World, boot, carry_out, put_building
from tests.support.whole import working

FORMATS = orjson.dumps({"disk_format": "raw", "container_format": "bare", "hw_rng_model": "virtio"}).decode()


class ShelvingOperation(MoveOperation):
    """On a server that is offloaded only when somebody asks for it. Which host has it is left open in the outcome."""

    __test__ = False
    before: ClassVar[tuple[type[Operation], ...]] = ()
    """What is done to the server first."""

    async def make_server(self, db: Database, world: World) -> None:
        world.config.compute.shelved_offload_seconds = -1
        await put_building(db, world.server_id, image_id=world.cloud.image_id, image_properties=FORMATS)
        async with db.transaction() as tx:
            await boot(tx, world)
        async with working(db, world):
            await world.cloud.settled(world.server_id)
        for operation in self.before:
            await carry_out(db, world, operation)

    async def begin(self, tx: Transaction, world: World) -> str:
        return await ServerOperation.begin(self, tx, world)

    async def census(self, db: Database, world: World) -> Any:
        server = await db.fetch_one("SELECT * FROM servers WHERE id = $1", world.server_id)
        assert server is not None
        kept = {name: server[name] is not None for name in ("shelved_at", "shelved_image_id")}
        return {**await super().census(db, world), **kept, "pin": server["pinned_zone"]}

    async def outcome(self, db: Database, world: World) -> Any:
        async with working(db, world):  # what the last transaction has begun
            await all_done(world.cloud)
        text = orjson.dumps(await self.census(db, world)).decode()
        return text.replace("sim-001", "host").replace("sim-002", "host")


class TestShelve(ShelvingOperation):
    __test__ = True
    operation: ClassVar[type[Operation]] = Shelve
