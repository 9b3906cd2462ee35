"""Local SQLite files of a host process: the agents' journal and the simulated hypervisors."""

from __future__ import annotations

from pathlib import Path

import apsw

from kilonova.store.sqlite import use_wal

# High, so that `checkpoint` in a thread does the work: an automatic checkpoint makes the event loop wait for the disk.
_AUTOCHECKPOINT_PAGES = 8000


def open_file(path: Path, schema: str = "", *, durable: bool = False) -> apsw.Connection:
    """Open or create the file, readable by its owner only. A commit survives a kill of the process.

    If it is `durable`, it also survives a power cut.
    """
    path.touch(mode=0o600)
    connection = apsw.Connection(str(path))
    connection.set_busy_timeout(5000)
    use_wal(connection)
    connection.pragma("synchronous", "full" if durable else "normal")
    connection.wal_autocheckpoint(_AUTOCHECKPOINT_PAGES)
    connection.execute(schema)
    return connection


def checkpoint(path: Path) -> None:
    """Checkpoint the write-ahead log without blocking others. Opens its own connection, so it may run in a thread."""
    connection = open_file(path)
    try:
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
    finally:
        connection.close()
