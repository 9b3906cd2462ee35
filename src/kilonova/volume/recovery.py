"""After a crash: files that no volume, snapshot or operation knows are removed. Operations go on by themselves."""

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
    # Listed before the database is asked: what is made in between is then not among them.
    names = await in_thread(files.names)
    if not names:
        return
    known = {f"{row['id']}.{row['data_id']}" for row in await db.fetch(_KNOWN)}
    rows = await db.fetch("SELECT id FROM operations WHERE finished_at IS NULL AND server_id IS NULL")
    working = {row["id"] for row in rows}
    unknown = [name for name in names if name not in known and _maker(name) not in working]
    if removed := await in_thread(files.sweep, unknown):
        log.info("removed %d files of volumes that nobody knows", removed)


def _maker(name: str) -> str:
    """The operation that has written the file: its id begins the second part of the name."""
    return name.partition(".")[2][:36]
