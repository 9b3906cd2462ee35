"""The database interface for SQLite: WAL, one writer with group commit, one connection for reads.

Searches by regular expressions have connections of their own, in threads.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import apsw

from kilonova.store.interface import Conflict, Row, StoreError
from kilonova.store.sqlite_search import Search
from kilonova.store.sqlite_statements import Statements
from kilonova.store.writer import Group, Writer

T = TypeVar("T")

BUSY_TIMEOUT_MILLISECONDS = 5000


def connect(path: Path) -> apsw.Connection:
    """A connection for writing or reading. A missing file is created, readable by its owner only."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    try:
        return _connection(path)
    except apsw.Error as error:
        raise StoreError(f"{path}: {error}") from error


def _connect_for_reading(path: Path) -> apsw.Connection:
    connection = connect(path)
    connection.pragma("query_only", True)
    return connection


def _connection(path: Path) -> apsw.Connection:
    connection = apsw.Connection(str(path))
    connection.set_busy_timeout(BUSY_TIMEOUT_MILLISECONDS)
    use_wal(connection)
    connection.pragma("synchronous", "full")
    connection.pragma("foreign_keys", True)
    connection.pragma("temp_store", "memory")
    # As in PostgreSQL: LIKE is case-sensitive, and GREATEST and LEAST ignore nulls.
    connection.pragma("case_sensitive_like", True)
    connection.create_scalar_function("greatest", _greatest, deterministic=True)
    connection.create_scalar_function("least", _least, deterministic=True)
    return connection


def use_wal(connection: apsw.Connection) -> None:
    """Switch the file to WAL. SQLite's busy timeout does not apply to this, hence the loop."""
    deadline = time.monotonic() + BUSY_TIMEOUT_MILLISECONDS / 1000
    while True:
        try:
            connection.pragma("journal_mode", "wal")
            return
        except apsw.BusyError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.005)


def _greatest(*values: Any) -> Any:
    return max((value for value in values if value is not None), default=None)


def _least(*values: Any) -> Any:
    return min((value for value in values if value is not None), default=None)


class SqliteTransaction:
    """A transaction. Its statements run on the event loop's thread, because they take microseconds."""

    __slots__ = ("_channels", "_failure", "_group", "_statements", "_writer")

    def __init__(self, writer: Writer, statements: Statements) -> None:
        self._writer = writer
        self._statements = statements
        self._group: Group | None = None
        self._channels: set[str] | None = None
        self._failure: BaseException | None = None

    async def __aenter__(self) -> SqliteTransaction:
        self._group = await self._writer.enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        group = self._group
        assert group is not None
        self._group = None
        keep = error is None and self._failure is None
        kept = self._writer.leave(group, keep, self._channels)
        # The error may depend on uncommitted writes of earlier members of the group, so wait for their commit too.
        if kept or (group.members and not group.is_lost and (error is None or isinstance(error, Exception))):
            await self._writer.wait_until_durable(group)
        if self._failure is not None and error is None:
            raise StoreError("a statement of the transaction failed, and the failure was ignored") from self._failure
        if keep and not kept:
            raise Conflict("FOREIGN KEY constraint failed", kind="foreign key")

    async def fetch(self, sql: str, *args: Any) -> list[Row]:
        return self._run(self._statements.fetch, sql, args)

    async def fetch_one(self, sql: str, *args: Any) -> Row | None:
        return self._run(self._statements.fetch_one, sql, args)

    async def fetch_value(self, sql: str, *args: Any) -> Any:
        return self._run(self._statements.fetch_value, sql, args)

    async def execute(self, sql: str, *args: Any) -> int:
        return self._run(self._statements.execute, sql, args)

    async def execute_many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        self._run(self._statements.execute_many, sql, rows)

    async def lock(self, key: str) -> None:
        """Nothing to do: there is one writer at a time."""

    def notify(self, channel: str) -> None:
        if self._channels is None:
            self._channels = set()
        self._channels.add(channel)

    def _run(self, method: Callable[[str, Any], T], sql: str, args: Any) -> T:
        """After a failed statement, all others of the transaction fail, as in PostgreSQL."""
        if self._group is None:
            raise RuntimeError("the transaction is not open")
        if self._failure is not None:
            raise StoreError("a statement of this transaction has failed before") from self._failure
        try:
            return method(sql, args)
        except BaseException as error:
            self._failure = error
            self._writer.note_failure(error)
            if self._writer.is_rolled_back():
                self._writer.abandon(self._group, error)
            raise


class SqliteDatabase:
    dialect = "sqlite"

    def __init__(self, path: Path) -> None:
        self._loop = asyncio.get_running_loop()
        self._listeners: dict[str, list[Callable[[], None]]] = {}
        self._write_connection = connect(path)
        self._write_connection.set_busy_timeout(0)  # the writer retries without blocking the loop
        self._read_connection = _connect_for_reading(path)
        self._reader = Statements(self._read_connection)
        self._search = Search(partial(_connect_for_reading, path))
        self._statements = Statements(self._write_connection)
        self._writer = Writer(self._write_connection, self._call_listeners)

    @property
    def commits(self) -> int:
        return self._writer.commits

    @property
    def last_full_at(self) -> float:
        return self._writer.last_full_at

    async def fetch(self, sql: str, *args: Any) -> list[Row]:
        return self._reader.fetch(sql, args)

    async def fetch_one(self, sql: str, *args: Any) -> Row | None:
        return self._reader.fetch_one(sql, args)

    async def fetch_value(self, sql: str, *args: Any) -> Any:
        return self._reader.fetch_value(sql, args)

    async def search(self, sql: str, *args: Any) -> list[Row]:
        return await self._search.fetch(sql, args)

    def transaction(self) -> SqliteTransaction:
        return SqliteTransaction(self._writer, self._statements)

    def listen(self, channel: str, callback: Callable[[], None]) -> None:
        self._listeners.setdefault(channel, []).append(callback)

    async def close(self) -> None:
        await self._writer.close()
        self._search.close()
        self._read_connection.close()
        self._write_connection.close()

    def _call_listeners(self, channels: Iterable[str]) -> None:
        for channel in channels:
            for callback in self._listeners.get(channel, ()):
                self._loop.call_soon(callback)
