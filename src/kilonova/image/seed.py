"""The first image of a new cloud."""

from __future__ import annotations

from pathlib import Path

from kilonova import clock
from kilonova.ids import new_id
from kilonova.image.files import ImageFiles
from kilonova.image.images import model
from kilonova.image.images.model import Image, ImageDetails
from kilonova.image.upload_cleanup import clean_up_uploads
from kilonova.store import Database

IMAGE_NAME = "cirros-sim"
_TEXT = b"This is the disk of simulated servers: they never read it.\n"
CONTENT = _TEXT + bytes(64 * 1024 - len(_TEXT))
_OLDEST = "SELECT id FROM images ORDER BY created_at, id LIMIT 1"


async def seed(db: Database, directory: Path, project_id: str) -> str:
    """Clean up interrupted uploads, and create the image if there is none. Returns the id of the oldest image."""
    files = ImageFiles(directory)
    await clean_up_uploads(db, files)
    found = await db.fetch_value(_OLDEST)
    return str(found) if found is not None else await create_first(db, files, project_id, IMAGE_NAME, "raw", CONTENT)


async def create_first(
    db: Database, files: ImageFiles, project_id: str, name: str, disk_format: str, content: bytes
) -> str:
    """Create a public image unless there is an image by now. Returns the id of the oldest image."""
    now = clock.now()
    image = Image(
        id=new_id(),
        created_at=now,
        updated_at=now,
        name=name,
        owner=project_id,
        visibility="public",
        disk_format=disk_format,
        container_format="bare",
    )
    data_id = new_id()
    upload = files.begin(image.id, data_id, disk_format)
    try:
        await upload.write(content)
        stored = await upload.finish()
        async with db.transaction() as tx:
            await tx.lock("image seed")
            found = await tx.fetch_value(_OLDEST)
            if found is None:
                await model.create(tx, ImageDetails(image, {"hw_rng_model": "virtio"}, []))
                await model.begin_upload(tx, image.id, data_id, clock.now())
                await model.finish_upload(tx, image.id, data_id, stored, clock.now())
    finally:
        upload.close()
    if found is not None:
        files.remove(image.id, data_id)
    return str(found or image.id)
