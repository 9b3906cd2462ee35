"""Dropping an image, generated: twice, failed, and killed."""

from __future__ import annotations

from typing import Any, ClassVar

from kilonova.compute.operations.images import DropImage
from kilonova.ids import new_id
from kilonova.operations import Operation, begin
from kilonova.store import Database, Transaction
from tests.compute.operations.worlds import ServerOperation, World


class TestDropImage(ServerOperation):
    """It only goes forward: what it has deleted, nobody wants back."""

    __test__ = True
    operation: ClassVar[type[Operation]] = DropImage

    async def make_server(self, db: Database, world: World) -> None:
        """An image will do."""
        world.source = new_id()
        token = await world.identity.token()
        await world.image.create({"id": world.source, "disk_format": "raw", "container_format": "bare"}, token)

    async def begin(self, tx: Transaction, world: World) -> str:
        return await begin(tx, DropImage, params={"image_id": world.source})

    async def census(self, db: Database, world: World) -> Any:
        return None

    async def outcome(self, db: Database, world: World) -> Any:
        return await db.fetch_value("SELECT COUNT(*) FROM images WHERE id = $1", world.source)
