"""The agents' journal: the highest epoch seen of each operation, and the replies to finished commands.

Entries belong to one incarnation of the database. A host that receives a command of a newer one forgets its entries.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from pathlib import Path
from queue import SimpleQueue
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


_RAISE_EPOCH = """
INSERT INTO operations (host, operation, epoch, at) VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE
SET epoch = excluded.epoch, at = excluded.at WHERE excluded.epoch > operations.epoch
"""
_RAISE_MARK = """
INSERT INTO hosts (host, incarnation, leases) VALUES (?, ?, ?) ON CONFLICT DO UPDATE
SET incarnation = excluded.incarnation, leases = excluded.leases
WHERE (excluded.incarnation, excluded.leases) > (hosts.incarnation, hosts.leases)
"""
_FINISH = """
INSERT OR REPLACE INTO finished (host, operation, step, round, verb, guest, reply, at) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
"""


class _Write(NamedTuple):
    sql: str
    values: tuple[object, ...]
    done: asyncio.Future[None]


class Journal:
    """One journal file for all agents of a process.

    Writes survive a power cut. A thread commits all writes that have come together, so that the event loop never waits
    for the disk, and concurrent commands share its syncs.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._reader = open_file(path, _SCHEMA)
        self._writer = open_file(path, durable=True)
        self._queue: list[_Write] = []
        self._is_committing = False
        self._batches: SimpleQueue[list[_Write] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._commit_batches, name="journal", daemon=True)
        self._thread.start()
        # By host and operation: epochs that are not committed yet.
        self._new_epochs: dict[tuple[str, str], int] = {}
        # By host: the highest mark, committed or not.
        self._marks: dict[str, Mark] = {}
        # By host: the beginning of an incarnation that is not committed yet.
        self._beginning: dict[str, asyncio.Future[None]] = {}

    @property
    def is_committing(self) -> bool:
        return self._is_committing

    def mark(self, host: str) -> Mark:
        """Return the highest mark of a database from which the host has executed commands."""
        if (known := self._marks.get(host)) is not None:
            return known
        row = self._reader.execute("SELECT incarnation, leases FROM hosts WHERE host = ?", (host,)).fetchone()
        mark = self._marks[host] = Mark(*row) if row is not None else Mark()
        return mark

    def find(self, key: Key) -> tuple[int | None, bytes | None]:
        """Return the highest epoch seen of the operation, and the reply if the command is finished."""
        row = self._reader.execute(
            "SELECT epoch, (SELECT reply FROM finished WHERE host = ?1 AND operation = ?2 AND step = ?3"
            " AND round = ?4 AND verb = ?5 AND guest = ?6) FROM operations WHERE host = ?1 AND operation = ?2",
            key,
        ).fetchone()
        epoch, reply = row if row is not None else (None, None)
        new = self._new_epochs.get((key.host, key.operation))
        return (epoch if new is None else max(new, epoch or 0)), reply

    def raise_epoch(self, key: Key, epoch: int, mark: Mark) -> asyncio.Future[None]:
        """Make commands with a lower epoch stale at once, and record the mark of the database if it is higher.

        The result is there when this is durable.
        """
        name = (key.host, key.operation)
        self._new_epochs[name] = max(epoch, self._new_epochs.get(name, 0))
        if mark > self.mark(key.host):
            self._marks[key.host] = mark
            self._write(_RAISE_MARK, (key.host, *mark)).add_done_callback(_retrieve)
        done = self._write(_RAISE_EPOCH, (*name, epoch, clock.now()))
        done.add_done_callback(lambda done: self._epoch_written(name, epoch, done))
        return done

    def begin_incarnation(self, host: str, mark: Mark) -> None:
        """Forget the host's entries: they are about another history of the same operations.

        Commands of older incarnations are refused at once. Those of this one wait until it has `begun`.
        """
        before, self._marks[host] = self.mark(host), mark
        self._new_epochs = {name: epoch for name, epoch in self._new_epochs.items() if name[0] != host}
        for table in ("finished", "operations"):
            self._write(f"DELETE FROM {table} WHERE host = ?", (host,)).add_done_callback(_retrieve)
        # The three writes are in one batch, and so in one transaction.
        done = self._beginning[host] = self._write(_RAISE_MARK, (host, *mark))
        done.add_done_callback(lambda done: self._incarnation_written(host, before, done))

    async def begun(self, host: str) -> None:
        """Wait until the host's newest incarnation is durable. Raises apsw.Error if it cannot be written."""
        if (beginning := self._beginning.get(host)) is not None:
            await asyncio.shield(beginning)

    def _incarnation_written(self, host: str, before: Mark, done: asyncio.Future[None]) -> None:
        if self._beginning.get(host) is done:
            del self._beginning[host]
        if not done.cancelled() and done.exception() is not None:
            self._marks[host] = before  # the next command tries again

    async def finish(self, key: Key, reply: bytes) -> None:
        """Return when the reply is durable."""
        await self._write(_FINISH, (*key, reply, clock.now()))

    def _epoch_written(self, name: tuple[str, str], epoch: int, done: asyncio.Future[None]) -> None:
        _retrieve(done)  # a repeated command does not wait for the result
        if self._new_epochs.get(name) == epoch:
            del self._new_epochs[name]

    def _write(self, sql: str, values: tuple[object, ...]) -> asyncio.Future[None]:
        if not self._thread.is_alive():
            raise apsw.ConnectionClosedError("the journal is closed")
        write = _Write(sql, values, asyncio.get_running_loop().create_future())
        self._queue.append(write)
        if not self._is_committing:
            self._is_committing = True
            # Ready tasks run before this callback, and may join the batch.
            write.done.get_loop().call_soon(self._commit_queue)
        return write.done

    def _commit_queue(self) -> None:
        batch, self._queue = self._queue, []
        self._is_committing = bool(batch)
        if batch:
            self._batches.put(batch)

    def _commit_batches(self) -> None:
        while (batch := self._batches.get()) is not None:
            error = self._try_commit(batch)
            try:
                batch[0].done.get_loop().call_soon_threadsafe(self._finish_batch, batch, error)
            except RuntimeError:
                self._is_committing = False  # the loop is closed, so nothing waits for the result

    def _try_commit(self, batch: list[_Write]) -> apsw.Error | None:
        try:
            with self._writer:
                for write in batch:
                    self._writer.execute(write.sql, write.values)
        except apsw.Error as error:
            return error
        return None

    def _finish_batch(self, batch: list[_Write], error: apsw.Error | None) -> None:
        for write in batch:
            if write.done.done():
                continue
            if error is None:
                write.done.set_result(None)
            else:
                write.done.set_exception(error)
        self._commit_queue()

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
        """Close the file after the batch under way."""
        self._batches.put(None)
        self._thread.join()
        self._writer.close()
        self._reader.close()


def _retrieve(done: asyncio.Future[None]) -> None:
    """Mark the exception as retrieved: another write of the same batch reports it."""
    if not done.cancelled():
        done.exception()


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
