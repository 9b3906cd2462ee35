"""After a crash: uploads that nobody will finish are given up, files that no image knows are removed."""

from __future__ import annotations

import asyncio

from kilonova import clock
from kilonova.image import model
from kilonova.image.files import ImageFiles
from kilonova.store import Database


async def recover(db: Database, files: ImageFiles) -> None:
    for row in await db.fetch("SELECT id, data_id FROM images WHERE status = 'saving'"):
        if not files.is_uploading(row["id"], row["data_id"]):
            files.remove(row["id"], row["data_id"])
            async with db.transaction() as tx:
                await model.give_up_upload(tx, row["id"], row["data_id"], clock.now())
    # Listed before the images are asked for: an upload that begins in between is then not among them.
    names = await asyncio.to_thread(files.names)
    if names:
        rows = await db.fetch("SELECT id, data_id FROM images WHERE data_id IS NOT NULL")
        known = {f"{row['id']}.{row['data_id']}" for row in rows}
        await asyncio.to_thread(files.sweep, names, known)
