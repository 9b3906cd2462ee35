"""What a new cloud's image service begins with: a small image to boot servers from."""

from __future__ import annotations

from pathlib import Path

from kilonova import clock
from kilonova.ids import new_id
from kilonova.image import model
from kilonova.image.files import ImageFiles
from kilonova.image.recovery import recover
from kilonova.store import Database

NAME = "cirros-sim"
_TEXT = b"This is the disk of simulated servers: they never read it.\n"
CONTENT = _TEXT + bytes(64 * 1024 - len(_TEXT))
_IMAGE = {"name": NAME, "visibility": "public", "disk_format": "raw", "container_format": "bare"}
_FIRST = "SELECT id FROM images ORDER BY created_at, id LIMIT 1"


async def seed(db: Database, directory: Path, project_id: str) -> str:
    """Put the service in order after the last stop, and make the image if there is none; its id or the first one's."""
    files = ImageFiles(directory)
    await recover(db, files)
    found = await db.fetch_value(_FIRST)
    return str(found) if found is not None else await add_first(db, files, project_id, _IMAGE, CONTENT)


async def add_first(db: Database, files: ImageFiles, project_id: str, image: dict[str, str], content: bytes) -> str:
    """Make the image unless another one came meanwhile; the id of the one there is."""
    row = model.draft(project_id, image, clock.now())
    data_id = new_id()
    upload = files.begin(row["id"], data_id, row["disk_format"])
    try:
        await upload.write(content)
        stored = await upload.finish()
        async with db.transaction() as tx:
            await tx.hold("image seed")
            found = await tx.fetch_value(_FIRST)
            if found is None:
                await model.create(tx, row, {"hw_rng_model": "virtio"}, [])
                await model.begin_upload(tx, row["id"], data_id, clock.now())
                await model.finish_upload(tx, row["id"], data_id, stored, clock.now())
    finally:
        upload.close()
    if found is not None:
        files.remove(row["id"], data_id)
    return str(found or row["id"])
