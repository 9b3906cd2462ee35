"""Removes files that belong to no volume, snapshot or unfinished operation, after a crash."""

from __future__ import annotations

import logging

from kilonova.store import Database
from kilonova.volume.files import VolumeFiles, in_thread

log = logging.getLogger(__name__)

_KNOWN = """
SELECT id, data_id FROM volumes WHERE data_id IS NOT NULL
UNION ALL SELECT id, data_id FROM volume_snapshots WHERE data_id IS NOT NULL
"""


async def recover(db: Database, files: VolumeFiles) -> None:
    # List files before reading the database, so that files created in between are not listed.
    names = await in_thread(files.names)
    if not names:
        return
    known = {f"{row['id']}.{row['data_id']}" for row in await db.fetch(_KNOWN)}
    rows = await db.fetch("SELECT id FROM operations WHERE finished_at IS NULL AND server_id IS NULL")
    unfinished = {row["id"] for row in rows}
    unknown = [name for name in names if name not in known and _operation_id(name) not in unfinished]
    if removed := await in_thread(files.sweep, unknown):
        log.info("removed %d unknown files of volumes", removed)


def _operation_id(name: str) -> str:
    """The operation that wrote the file: its id starts the second part of the name."""
    return name.partition(".")[2][:36]
