"""The small SQLite files a host process keeps beside it: the agents' journal and the simulated hypervisors."""

from __future__ import annotations

from pathlib import Path

import apsw

from kilonova.store.sqlite import use_wal

# A backstop only: `checkpoint` runs aside of the event loop, which would otherwise wait for the disk at a commit.
_AUTOCHECKPOINT_PAGES = 8000


def open_file(path: Path, schema: str = "") -> apsw.Connection:
    """Opens or makes the file, readable by its owner only. What is written survives a kill at any moment."""
    path.touch(mode=0o600)
    connection = apsw.Connection(str(path))
    connection.set_busy_timeout(5000)
    use_wal(connection)
    connection.pragma("synchronous", "normal")
    connection.wal_autocheckpoint(_AUTOCHECKPOINT_PAGES)
    connection.execute(schema)
    return connection


def checkpoint(path: Path) -> None:
    """Moves the log into the file as far as nobody is in the way. Own connection: made to run in a thread."""
    connection = open_file(path)
    try:
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
    finally:
        connection.close()
