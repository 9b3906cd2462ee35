"""A volume service with one volume, for the generated tests of operations."""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import orjson
from msgspec import convert

from kilonova.config import load
from kilonova.ids import new_id
from kilonova.operations import Operation, begin
from kilonova.operations.testing import OperationTests
from kilonova.services import Services
from kilonova.store import Database, Row, Transaction
from kilonova.volume.files import GIB, VolumeFiles
from kilonova.volume.operations.create_snapshot import CreateSnapshot
from kilonova.volume.operations.replace_content import CreateVolume
from tests.support.cloud import DEMO
from tests.support.full_cloud import running_worker
from tests.volume.support import furnish, put_snapshot, put_volume

# The size is not a multiple of the block size, with zeros inside and at the end.
IMAGE = b"first" * 30000 + bytes(300000) + b"last" * 20001 + bytes(70000)
OTHER = b"something else" * 9999


class EventRecorder:
    """A compute client that records events."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, bool]] = []

    async def send_event(self, name: str, server_id: str, volume_id: str, token: str, *, ok: bool = True) -> None:
        self.events.append((name, server_id, ok))


class World(Services):
    """The services of the worker, and the volume of the operation."""

    files: VolumeFiles
    events: EventRecorder
    volume_id: str
    snapshot_id: str
    image_id: str
    stack: AsyncExitStack

    async def row(self) -> Row | None:
        return await self.db.fetch_one("SELECT * FROM volumes WHERE id = $1", self.volume_id)

    async def content(self) -> str | None:
        """The checksum of the volume's content; None without content."""
        row = await self.row()
        if row is None or row["data_id"] is None:
            return None
        return checksum(self.files.volume(row["id"], row["data_id"]))


async def make_world(db: Database) -> World:
    world = World()
    world.stack = stack = AsyncExitStack()
    world.config = load(environ={})
    world.config.data = stack.enter_context(tempfile.TemporaryDirectory())
    world.db = db
    await furnish(world)
    world.events = EventRecorder()
    world.compute = world.events  # type: ignore[assignment]
    world.files = VolumeFiles.of(world.config)
    world.image_id = await put_image(world, IMAGE)
    return world


class VolumeOperation(OperationTests):
    """Tests of an operation on a volume that was created from the image."""

    __test__ = False

    async def prepare(self, db: Database) -> World:
        world = await make_world(db)
        world.volume_id = await make_volume(world, {"image": world.image_id})
        return world

    async def tear_down(self, world: World) -> None:
        await world.stack.aclose()

    async def list_resources(self, db: Database, world: World) -> Any:
        """Files and rows. The status is part of the outcome."""
        return {"files": on_disk(world), **await self.rows(world), "left": await unfinished(db)}

    async def rows(self, world: World) -> dict[str, Any]:
        names = ("data_id", "size", "bootable", "image_metadata", "progress", "previous_status")
        volume = await world.row()
        return {"volume": volume and {name: volume[name] for name in names}}

    async def outcome(self, db: Database, world: World) -> Any:
        await settled(world)
        volume = await world.row()
        return {
            "status": volume and volume["status"],
            "size": volume and volume["size"],
            "content": await world.content(),
            "image": volume and "image_id" in orjson.loads(volume["image_metadata"] or "{}"),
            "files": len(on_disk(world)),
            "events": sorted(set(world.events.events)),
        }


async def put_image(world: World, content: bytes, disk_format: str = "raw") -> str:
    requested = {"name": "i", "disk_format": disk_format, "container_format": "bare", "hw_rng_model": "virtio"}
    image = await world.image.create(requested, "admin")
    await world.image.upload(image.id, content, "admin")
    return image.id


async def make_volume(world: World, source: dict[str, str] | None, size: int = 1) -> str:
    volume_id = await put_volume(world.db, status="creating", data_id=None, size=size)
    await carry_out(world, CreateVolume, volume_id=volume_id, source=source)
    return volume_id


async def make_snapshot(world: World, volume_id: str) -> str:
    snapshot_id = await put_snapshot(world.db, volume_id, status="creating")
    await carry_out(world, CreateSnapshot, snapshot_id=snapshot_id)
    return snapshot_id


async def put_attachment(db: Database, volume_id: str, server_id: str, status: str) -> None:
    async with db.transaction() as tx:
        await tx.execute(
            "INSERT INTO volume_attachments (id, volume_id, project_id, server_id, status, mode, created_at,"
            " updated_at) VALUES ($1, $2, $3, $4, $5, 'rw', 1, 1)",
            new_id(),
            volume_id,
            DEMO,
            server_id,
            status,
        )


async def start(tx: Transaction, operation: type[Operation], **params: Any) -> str:
    given = convert(params, operation.params_type)
    return await begin(tx, operation, params=given, project_id=DEMO, user_id="member-id", request_id="req-1")


async def carry_out(world: World, operation: type[Operation], **params: Any) -> str:
    """Run the operation and those that it begins; return its final state."""
    async with world.db.transaction() as tx:
        identity = await start(tx, operation, **params)
    await settled(world)
    return str(await world.db.fetch_value("SELECT state FROM operations WHERE id = $1", identity))


async def settled(world: World) -> None:
    """Wait until all operations have finished."""
    if not await unfinished(world.db):
        return
    async with asyncio.timeout(60), running_worker(world.db, world):
        while await unfinished(world.db):
            await asyncio.sleep(0.005)


async def unfinished(db: Database) -> list[str]:
    rows = await db.fetch("SELECT kind FROM operations WHERE finished_at IS NULL ORDER BY seq")
    return [row["kind"] for row in rows]


def on_disk(world: World) -> list[str]:
    return sorted(str(path.relative_to(world.files.root)) for path in world.files.root.rglob("*.*"))


def checksum(path: Path) -> str:
    """The checksum of the content without the zeros at its end, and the file size."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        digest.update(file.read(8 << 20).rstrip(b"\0"))
    assert path.stat().st_blocks * 512 < 8 << 20, "the file is not sparse"
    return f"{digest.hexdigest()} {path.stat().st_size / GIB}"


def expected(content: bytes, size: float = 1) -> str:
    return f"{hashlib.sha256(content.rstrip(bytes(1))).hexdigest()} {float(size)}"
