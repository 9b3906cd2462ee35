"""Generated tests of every operation: each step repeated, failed and killed.

Operations with the same statements as others run on only one database.
"""

from __future__ import annotations

import os
from typing import Any, ClassVar

from kilonova.ids import new_id
from kilonova.operations import Operation
from kilonova.store import Database, Transaction
from kilonova.volume.operations.create_snapshot import CreateSnapshot
from kilonova.volume.operations.delete_content import DeleteContent
from kilonova.volume.operations.delete_snapshot import DeleteSnapshot
from kilonova.volume.operations.delete_volume import DeleteVolume
from kilonova.volume.operations.extend_volume import ExtendVolume
from kilonova.volume.operations.notify_compute import NotifyCompute
from kilonova.volume.operations.replace_content import CreateVolume, ReimageVolume, RevertVolume
from kilonova.volume.operations.upload_volume import UploadVolume
from tests.compute.operations.worlds import Variant
from tests.volume.operations.worlds import (
    OTHER,
    VolumeOperation,
    World,
    make_snapshot,
    make_volume,
    make_world,
    on_disk,
    put_attachment,
    put_image,
    start,
    unfinished,
)
from tests.volume.support import put_snapshot, put_volume


class TestCreateVolume(VolumeOperation):
    __test__ = True
    operation: ClassVar[type[Operation]] = CreateVolume

    async def prepare(self, db: Database) -> World:
        world = await make_world(db)
        world.volume_id = await put_volume(db, status="creating", data_id=None)
        return world

    async def begin(self, tx: Transaction, world: World) -> str:
        return await start(tx, CreateVolume, volume_id=world.volume_id, source={"image": world.image_id})


class TestCreateVolumeFromSnapshot(Variant, TestCreateVolume):
    _expected: ClassVar[Any] = None

    async def prepare(self, db: Database) -> World:
        world = await make_world(db)
        source = await make_volume(world, {"image": world.image_id})
        world.snapshot_id = await make_snapshot(world, source)
        world.volume_id = await put_volume(db, status="creating", data_id=None)
        return world

    async def begin(self, tx: Transaction, world: World) -> str:
        return await start(tx, CreateVolume, volume_id=world.volume_id, source={"snapshot": world.snapshot_id})


class TestDeleteVolume(VolumeOperation):
    """No undo: a failed deletion keeps the row, so that no file is without a row."""

    __test__ = True
    operation: ClassVar[type[Operation]] = DeleteVolume

    async def begin(self, tx: Transaction, world: World) -> str:
        await tx.execute("UPDATE volumes SET status = 'deleting' WHERE id = $1", world.volume_id)
        return await start(tx, DeleteVolume, volume_id=world.volume_id)

    async def list_resources(self, db: Database, world: World) -> Any:
        volume = await world.row()
        return {"orphans": [] if volume else on_disk(world), "there": volume is not None}

    async def outcome(self, db: Database, world: World) -> Any:
        return {**await self.list_resources(db, world), "files": on_disk(world)}


class TestExtendVolume(VolumeOperation):
    __test__ = True
    operation: ClassVar[type[Operation]] = ExtendVolume

    async def prepare(self, db: Database) -> World:
        world = await super().prepare(db)
        await put_attachment(db, world.volume_id, "a-server", "attached")
        return world

    async def begin(self, tx: Transaction, world: World) -> str:
        await tx.execute("UPDATE volumes SET status = 'extending', size = 3 WHERE id = $1", world.volume_id)
        return await start(tx, ExtendVolume, volume_id=world.volume_id, before=1, size=3)

    async def list_resources(self, db: Database, world: World) -> Any:
        return {**await super().list_resources(db, world), "content": await world.content()}


class TestReimageVolume(VolumeOperation):
    """The volume is reserved for a server. A failure is sent as an event too."""

    __test__ = True
    operation: ClassVar[type[Operation]] = ReimageVolume

    async def prepare(self, db: Database) -> World:
        world = await super().prepare(db)
        world.image_id = await put_image(world, OTHER)
        await put_attachment(db, world.volume_id, "a-server", "reserved")
        return world

    async def begin(self, tx: Transaction, world: World) -> str:
        await tx.execute("UPDATE volumes SET status = 'downloading' WHERE id = $1", world.volume_id)
        return await start(tx, ReimageVolume, volume_id=world.volume_id, image_id=world.image_id)

    async def list_resources(self, db: Database, world: World) -> Any:
        before = {**await super().list_resources(db, world), "content": await world.content()}
        return {**before, "left": [kind for kind in before["left"] if kind != NotifyCompute.kind]}


class TestRevertVolume(VolumeOperation):
    __test__ = True
    operation: ClassVar[type[Operation]] = RevertVolume

    async def prepare(self, db: Database) -> World:
        world = await super().prepare(db)
        world.snapshot_id = await make_snapshot(world, world.volume_id)
        row = await world.row()
        assert row is not None
        with world.files.volume(row["id"], row["data_id"]).open("r+b") as file:
            file.write(OTHER)
        return world

    async def begin(self, tx: Transaction, world: World) -> str:
        await tx.execute("UPDATE volumes SET status = 'reverting' WHERE id = $1", world.volume_id)
        await tx.execute("UPDATE volume_snapshots SET status = 'restoring' WHERE id = $1", world.snapshot_id)
        return await start(tx, RevertVolume, volume_id=world.volume_id, snapshot_id=world.snapshot_id)

    async def list_resources(self, db: Database, world: World) -> Any:
        return {
            **await super().list_resources(db, world),
            "content": await world.content(),
            "snapshot": await db.fetch_value("SELECT status FROM volume_snapshots"),
        }

    async def outcome(self, db: Database, world: World) -> Any:
        snapshot = await db.fetch_value("SELECT status FROM volume_snapshots")
        return {**await super().outcome(db, world), "snapshot": snapshot}


class TestUploadVolume(VolumeOperation):
    __test__ = True
    operation: ClassVar[type[Operation]] = UploadVolume

    async def prepare(self, db: Database) -> World:
        """Shrink the file: a GiB is too much to upload in a test."""
        world = await super().prepare(db)
        row = await world.row()
        assert row is not None
        os.truncate(world.files.volume(row["id"], row["data_id"]), 1 << 20)
        return world

    async def begin(self, tx: Transaction, world: World) -> str:
        await tx.execute("UPDATE volumes SET status = 'uploading' WHERE id = $1", world.volume_id)
        image = {"id": new_id(), "name": "u", "protected": True, "disk_format": "raw", "container_format": "bare"}
        return await start(tx, UploadVolume, volume_id=world.volume_id, image=image)

    async def rows(self, world: World) -> dict[str, Any]:
        images = await world.db.fetch("SELECT id, status FROM images ORDER BY created_at")
        return {**await super().rows(world), "images": images}

    async def outcome(self, db: Database, world: World) -> Any:
        row = await db.fetch_one("SELECT status, virtual_size, name FROM images WHERE name = 'u'")
        return {**await super().outcome(db, world), "created": row}


class TestCreateSnapshot(VolumeOperation):
    __test__ = True
    operation: ClassVar[type[Operation]] = CreateSnapshot

    async def prepare(self, db: Database) -> World:
        world = await super().prepare(db)
        world.snapshot_id = await put_snapshot(db, world.volume_id, status="creating")
        return world

    async def begin(self, tx: Transaction, world: World) -> str:
        return await start(tx, CreateSnapshot, snapshot_id=world.snapshot_id)

    async def outcome(self, db: Database, world: World) -> Any:
        columns = "status, progress, bootable, image_metadata IS NOT NULL AS known"
        return {
            **await super().outcome(db, world),
            "snapshot": await db.fetch(f"SELECT {columns} FROM volume_snapshots"),
        }


class TestDeleteSnapshot(VolumeOperation):
    __test__ = True
    operation: ClassVar[type[Operation]] = DeleteSnapshot

    async def prepare(self, db: Database) -> World:
        world = await super().prepare(db)
        world.snapshot_id = await make_snapshot(world, world.volume_id)
        return world

    async def begin(self, tx: Transaction, world: World) -> str:
        await tx.execute("UPDATE volume_snapshots SET status = 'deleting' WHERE id = $1", world.snapshot_id)
        return await start(tx, DeleteSnapshot, snapshot_id=world.snapshot_id)

    async def list_resources(self, db: Database, world: World) -> Any:
        there = await db.fetch_value("SELECT COUNT(*) FROM volume_snapshots")
        return {"orphans": [] if there else [name for name in on_disk(world) if "snapshots" in name], "there": there}


class TestDeleteContent(VolumeOperation):
    """No undo."""

    __test__ = True
    operation: ClassVar[type[Operation]] = DeleteContent

    async def begin(self, tx: Transaction, world: World) -> str:
        world.files.volume(world.volume_id, "old").touch()
        return await start(tx, DeleteContent, volume_id=world.volume_id, data_id="old")

    async def list_resources(self, db: Database, world: World) -> Any:
        return await unfinished(db)


class TestNotifyCompute(VolumeOperation):
    """A repeated event does no harm."""

    __test__ = True
    operation: ClassVar[type[Operation]] = NotifyCompute

    async def begin(self, tx: Transaction, world: World) -> str:
        params = {"event": "volume-extended", "server_id": "a-server", "volume_id": world.volume_id, "ok": True}
        return await start(tx, NotifyCompute, **params)
