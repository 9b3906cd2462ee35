"""The agents' journal: the highest epoch seen of each operation, and the replies to finished commands.

Entries belong to one incarnation of the database. A host that receives a command of a newer one forgets its entries.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import NamedTuple

import apsw

from kilonova import clock
from kilonova.hosts.sqlite_files import checkpoint, open_file
from kilonova.store.incarnation import Mark

log = logging.getLogger(__name__)

JOURNAL_FILE_NAME = "agents.db"
KEEP_SECONDS = 24 * 3600.0
MAINTENANCE_INTERVAL_SECONDS = 10.0
PRUNE_INTERVAL_SECONDS = 3600.0

_PRUNE_BATCH_SIZE = 500

_SCHEMA = """
CREATE TABLE IF NOT EXISTS hosts (
    host TEXT PRIMARY KEY,
    incarnation INTEGER NOT NULL,
    leases INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS operations (
    host TEXT NOT NULL,
    operation TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    at REAL NOT NULL,
    PRIMARY KEY (host, operation)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS finished (
    host TEXT NOT NULL,
    operation TEXT NOT NULL,
    step TEXT NOT NULL,
    round INTEGER NOT NULL,
    verb TEXT NOT NULL,
    guest TEXT NOT NULL,
    reply BLOB NOT NULL,
    at REAL NOT NULL,
    PRIMARY KEY (host, operation, step, round, verb, guest)
) WITHOUT ROWID;
"""


class Key(NamedTuple):
    """Identifies a command. Includes verb and guest, so that a step and its undo may have the same name."""

    host: str
    operation: str
    step: str
    round: int
    verb: str
    guest: str


class Journal:
    """One journal file for all agents of a process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection = open_file(path, _SCHEMA)

    def mark(self, host: str) -> Mark:
        """Return the highest mark of a database from which the host has executed commands."""
        row = self._connection.execute("SELECT incarnation, leases FROM hosts WHERE host = ?", (host,)).fetchone()
        return Mark(*row) if row is not None else Mark()

    def find(self, key: Key) -> tuple[int | None, bytes | None]:
        """Return the highest epoch seen of the operation, and the reply if the command is finished."""
        row = self._connection.execute(
            "SELECT epoch, (SELECT reply FROM finished WHERE host = ?1 AND operation = ?2 AND step = ?3"
            " AND round = ?4 AND verb = ?5 AND guest = ?6) FROM operations WHERE host = ?1 AND operation = ?2",
            key,
        ).fetchone()
        return row if row is not None else (None, None)

    def raise_epoch(self, key: Key, epoch: int, mark: Mark) -> None:
        """Make commands with a lower epoch stale. Record the mark of the database if it is higher."""
        with self._connection:
            self._connection.execute(
                "INSERT INTO operations (host, operation, epoch, at) VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE"
                " SET epoch = excluded.epoch, at = excluded.at WHERE excluded.epoch > operations.epoch",
                (key.host, key.operation, epoch, clock.now()),
            )
            self._raise_mark(key.host, mark)

    def begin_incarnation(self, host: str, mark: Mark) -> None:
        """Forget the host's entries: they are about another history of the same operations."""
        with self._connection:
            for table in ("finished", "operations"):
                self._connection.execute(f"DELETE FROM {table} WHERE host = ?", (host,))
            self._raise_mark(host, mark)

    def _raise_mark(self, host: str, mark: Mark) -> None:
        self._connection.execute(
            "INSERT INTO hosts (host, incarnation, leases) VALUES (?, ?, ?) ON CONFLICT DO UPDATE"
            " SET incarnation = excluded.incarnation, leases = excluded.leases"
            " WHERE (excluded.incarnation, excluded.leases) > (hosts.incarnation, hosts.leases)",
            (host, *mark),
        )

    def finish(self, key: Key, reply: bytes) -> None:
        self._connection.execute(
            "INSERT OR REPLACE INTO finished (host, operation, step, round, verb, guest, reply, at)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (*key, reply, clock.now()),
        )

    def prune(self, keep_seconds: float = KEEP_SECONDS) -> int:
        """Delete old entries, which no worker can repeat. Returns their number.

        Uses its own connection and small transactions, so it may run in a thread.
        """
        connection = open_file(self.path)
        try:
            before = clock.now() - keep_seconds
            deleted = _delete(connection, "finished", "at < ?", before)
            unused = (
                "at < ? AND NOT EXISTS (SELECT 1 FROM finished"
                " WHERE finished.host = operations.host AND finished.operation = operations.operation)"
            )
            return deleted + _delete(connection, "operations", unused, before)
        finally:
            connection.close()

    def close(self) -> None:
        self._connection.close()


_PRIMARY_KEYS = {"finished": "host, operation, step, round, verb, guest", "operations": "host, operation"}


def _delete(connection: apsw.Connection, table: str, condition: str, before: float) -> int:
    key = _PRIMARY_KEYS[table]
    statement = (
        f"DELETE FROM {table} WHERE ({key}) IN (SELECT {key} FROM {table} WHERE {condition} LIMIT {_PRUNE_BATCH_SIZE})"
    )
    deleted = 0
    while True:
        connection.execute(statement, (before,))
        deleted += connection.changes()
        if connection.changes() < _PRUNE_BATCH_SIZE:
            return deleted


async def maintain_files(journal: Journal, *other_files: Path) -> None:
    """Prune the journal and checkpoint all files, until cancelled."""
    until_prune = 0.0
    while True:
        await asyncio.sleep(MAINTENANCE_INTERVAL_SECONDS)
        until_prune -= MAINTENANCE_INTERVAL_SECONDS
        try:
            if until_prune <= 0:
                await asyncio.to_thread(journal.prune)
                until_prune = PRUNE_INTERVAL_SECONDS
            for path in (journal.path, *other_files):
                await asyncio.to_thread(checkpoint, path)
        except apsw.Error as error:
            log.warning("pruning and checkpointing host files failed: %s", error)
