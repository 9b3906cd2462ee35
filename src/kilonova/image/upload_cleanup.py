"""Cleanup after a crash: resets interrupted uploads, and removes files that belong to no image."""

from __future__ import annotations

import asyncio

from kilonova import clock
from kilonova.image.files import ImageFiles
from kilonova.image.images import model
from kilonova.store import Database


async def clean_up_uploads(db: Database, files: ImageFiles) -> None:
    for row in await db.fetch("SELECT id, data_id FROM images WHERE status = 'saving'"):
        if not files.is_uploading(row["id"], row["data_id"]):
            files.remove(row["id"], row["data_id"])
            async with db.transaction() as tx:
                await model.reset_upload(tx, row["id"], row["data_id"], clock.now())
    # Listed before the images are read, so that an upload that starts meanwhile is not in the list.
    names = await asyncio.to_thread(files.names)
    if names:
        rows = await db.fetch("SELECT id, data_id FROM images WHERE data_id IS NOT NULL")
        known = {f"{row['id']}.{row['data_id']}" for row in rows}
        await asyncio.to_thread(files.remove_orphans, names, known)
