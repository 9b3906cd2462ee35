"""What agents must not forget: the highest epoch seen of an operation, and the answers of finished commands."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import NamedTuple

import apsw

from kilonova import clock
from kilonova.hosts.disk import checkpoint, open_file

log = logging.getLogger(__name__)

NAME = "agents.db"
KEEP_SECONDS = 24 * 3600.0
TEND_EVERY = 10.0
PRUNE_EVERY = 3600.0

_PRUNE_AT_ONCE = 500

_SCHEMA = """
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
    """What makes two commands the same. With verb and guest, so that a step's undo may bear the step's name."""

    host: str
    operation: str
    step: str
    round: int
    verb: str
    guest: str


class Journal:
    """One file for all agents of a process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection = open_file(path, _SCHEMA)

    def look(self, key: Key) -> tuple[int | None, bytes | None]:
        """The highest epoch seen of the operation, and the reply if this very command is finished."""
        row = self._connection.execute(
            "SELECT epoch, (SELECT reply FROM finished WHERE host = ?1 AND operation = ?2 AND step = ?3"
            " AND round = ?4 AND verb = ?5 AND guest = ?6) FROM operations WHERE host = ?1 AND operation = ?2",
            key,
        ).fetchone()
        return row if row is not None else (None, None)

    def raise_epoch(self, key: Key, epoch: int) -> None:
        """From now on commands of a lower epoch are stale."""
        self._connection.execute(
            "INSERT INTO operations (host, operation, epoch, at) VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE"
            " SET epoch = excluded.epoch, at = excluded.at WHERE excluded.epoch > operations.epoch",
            (key.host, key.operation, epoch, clock.now()),
        )

    def finish(self, key: Key, reply: bytes) -> None:
        self._connection.execute(
            "INSERT OR REPLACE INTO finished (host, operation, step, round, verb, guest, reply, at)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (*key, reply, clock.now()),
        )

    def prune(self, keep_seconds: float = KEEP_SECONDS) -> int:
        """Forgets what no worker can ask for any more. Own connection, small bites: made to run in a thread."""
        connection = open_file(self.path)
        try:
            before = clock.now() - keep_seconds
            forgotten = _delete(connection, "finished", "at < ?", before)
            unused = (
                "at < ? AND NOT EXISTS (SELECT 1 FROM finished"
                " WHERE finished.host = operations.host AND finished.operation = operations.operation)"
            )
            return forgotten + _delete(connection, "operations", unused, before)
        finally:
            connection.close()

    def close(self) -> None:
        self._connection.close()


_PRIMARY_KEYS = {"finished": "host, operation, step, round, verb, guest", "operations": "host, operation"}


def _delete(connection: apsw.Connection, table: str, condition: str, before: float) -> int:
    key = _PRIMARY_KEYS[table]
    statement = (
        f"DELETE FROM {table} WHERE ({key}) IN (SELECT {key} FROM {table} WHERE {condition} LIMIT {_PRUNE_AT_ONCE})"
    )
    deleted = 0
    while True:
        connection.execute(statement, (before,))
        deleted += connection.changes()
        if connection.changes() < _PRUNE_AT_ONCE:
            return deleted


async def tend(journal: Journal, *beside: Path) -> None:
    """Keeps it, and the host's files beside it, small until cancelled."""
    until_prune = 0.0
    while True:
        await asyncio.sleep(TEND_EVERY)
        until_prune -= TEND_EVERY
        try:
            if until_prune <= 0:
                await asyncio.to_thread(journal.prune)
                until_prune = PRUNE_EVERY
            for path in (journal.path, *beside):
                await asyncio.to_thread(checkpoint, path)
        except apsw.Error as trouble:
            log.warning("files of the hosts not tidied this time: %s", trouble)
