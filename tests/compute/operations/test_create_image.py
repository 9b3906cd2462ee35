"""Generated tests of creating an image of a server."""

from __future__ import annotations

from typing import Any, ClassVar

import orjson

from kilonova.compute.operations.create_image import CreateImage, CreateVolumeImage
from kilonova.operations import Operation
from kilonova.store import Database
from tests.compute.operations.worlds import ServerOperation, World
from tests.support.full_cloud import running_worker
from tests.support.volumes import block_device, boot_from


class TestCreateImage(ServerOperation):
    """Resources with images and snapshots."""

    __test__ = True
    operation: ClassVar[type[Operation]] = CreateImage
    params: ClassVar[dict[str, Any]] = {"name": "copy", "metadata": {"a": "b"}}
    hosts = 1

    async def list_resources(self, db: Database, world: World) -> Any:
        return {
            **await super().list_resources(db, world),
            "images": await db.fetch("SELECT name, status, size FROM images WHERE status <> 'deleted' ORDER BY 1"),
            "snapshots": await db.fetch("SELECT name, status FROM volume_snapshots"),
        }


class TestCreateVolumeImage(TestCreateImage):
    """The server has a root volume and another volume."""

    _expected: ClassVar[Any] = None
    operation: ClassVar[type[Operation]] = CreateVolumeImage

    async def make_server(self, db: Database, world: World) -> None:
        image_id = world.cloud.image_id
        async with running_worker(db, world):
            server = await boot_from(
                world.cloud, block_device("image", image_id, volume_size=1), block_device("blank", None, volume_size=1)
            )
        world.server_id = server["id"]

    async def outcome(self, db: Database, world: World) -> Any:
        """With the image's block device mapping, without the snapshots' random ids."""
        rows = await db.fetch(
            "SELECT p.value FROM image_properties p JOIN images i ON i.id = p.image_id"
            " WHERE p.name = 'block_device_mapping' AND i.status <> 'deleted'"
        )
        mapping = [entry for row in rows for entry in orjson.loads(row["value"])]
        known = {row["id"] for row in await db.fetch("SELECT id FROM volume_snapshots")}
        assert {entry.pop("snapshot_id") for entry in mapping} == known
        return {**await self.list_resources(db, world), "mapping": mapping}
