"""Offloading, generated: each step twice, failed, and killed."""

from __future__ import annotations

from typing import Any, ClassVar

from kilonova.compute.operations.offload import Offload
from kilonova.compute.operations.shelve import Shelve
from kilonova.operations import Operation
from kilonova.store import Database
from tests.compute.operations.test_shelve import ShelvingOperation
from tests.compute.operations.worlds import World


class TestOffload(ShelvingOperation):
    """It only goes forward: one that failed has left the server shelved, with its share and its image."""

    __test__ = True
    operation: ClassVar[type[Operation]] = Offload
    before = (Shelve,)

    async def census(self, db: Database, world: World) -> Any:
        whole = await super().census(db, world)
        return {key: whole[key] for key in ("server", "shares", "images", "left", "shelved_at", "shelved_image_id")}

    async def outcome(self, db: Database, world: World) -> Any:
        ports = await db.fetch("SELECT host_id FROM ports WHERE device_id = $1", world.server_id)
        return await super().outcome(db, world), ports, await world.cloud.guests()
