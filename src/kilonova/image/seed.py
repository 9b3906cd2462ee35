"""The first image of a new cloud."""

from __future__ import annotations

from pathlib import Path

from kilonova import clock
from kilonova.ids import new_id
from kilonova.image.files import ImageFiles
from kilonova.image.images import model
from kilonova.image.upload_cleanup import clean_up_uploads
from kilonova.store import Database

IMAGE_NAME = "cirros-sim"
_TEXT = b"This is the disk of simulated servers: they never read it.\n"
CONTENT = _TEXT + bytes(64 * 1024 - len(_TEXT))
_IMAGE = {"name": IMAGE_NAME, "visibility": "public", "disk_format": "raw", "container_format": "bare"}
_OLDEST = "SELECT id FROM images ORDER BY created_at, id LIMIT 1"


async def seed(db: Database, directory: Path, project_id: str) -> str:
    """Clean up interrupted uploads, and create the image if there is none. Returns the id of the oldest image."""
    files = ImageFiles(directory)
    await clean_up_uploads(db, files)
    found = await db.fetch_value(_OLDEST)
    return str(found) if found is not None else await create_first(db, files, project_id, _IMAGE, CONTENT)


async def create_first(db: Database, files: ImageFiles, project_id: str, image: dict[str, str], content: bytes) -> str:
    """Create the image unless there is one by now. Returns the id of the oldest image."""
    row = model.new_row(project_id, image, clock.now())
    data_id = new_id()
    upload = files.begin(row["id"], data_id, row["disk_format"])
    try:
        await upload.write(content)
        stored = await upload.finish()
        async with db.transaction() as tx:
            await tx.lock("image seed")
            found = await tx.fetch_value(_OLDEST)
            if found is None:
                await model.create(tx, row, {"hw_rng_model": "virtio"}, [])
                await model.begin_upload(tx, row["id"], data_id, clock.now())
                await model.finish_upload(tx, row["id"], data_id, stored, clock.now())
    finally:
        upload.close()
    if found is not None:
        files.remove(row["id"], data_id)
    return str(found or row["id"])
