"""The database interface for PostgreSQL: READ COMMITTED transactions, advisory locks, NOTIFY."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from types import TracebackType
from typing import Any, TypeVar

from kilonova.store.interface import (
    MAX_SEARCHES,
    SEARCH_TIMEOUT_SECONDS,
    Row,
    StorageFull,
    StoreError,
    TooSlow,
    Unavailable,
)
from kilonova.store.postgres_errors import DRIVER_ERRORS, is_connection_lost, is_timeout, translate_error
from kilonova.store.postgres_listener import CHANNEL, Listener
from kilonova.store.postgres_pool import Connection, Pool

T = TypeVar("T")

POOL_SIZE = 10

RECONNECT_DELAYS_SECONDS = (0.0, 0.05, 0.25, 0.7, 1.0)
"""Delays between attempts to connect to a server that restarts."""


class PostgresDatabase:
    dialect = "postgresql"

    def __init__(self, url: str) -> None:
        self.commits = 0
        self.last_full_at = -math.inf
        self._pool = Pool(url, POOL_SIZE)
        self._listener = Listener(url)
        self._endings: set[asyncio.Task[Any]] = set()
        self._tasks_in_transaction: set[asyncio.Task[Any]] = set()
        self._search_slots = asyncio.Semaphore(MAX_SEARCHES)
        self._closed = False

    @classmethod
    async def connect(cls, url: str) -> PostgresDatabase:
        database = cls(url)
        try:
            await database._listener.start()
        except DRIVER_ERRORS as error:
            raise translate_error(error, False) from error
        return database

    async def fetch(self, sql: str, *args: Any) -> list[Row]:
        async def run(connection: Connection) -> list[Row]:
            return [dict(record) for record in await connection.fetch(sql, *args)]

        return await self._read(run)

    async def fetch_one(self, sql: str, *args: Any) -> Row | None:
        async def run(connection: Connection) -> Row | None:
            record = await connection.fetchrow(sql, *args)
            return None if record is None else dict(record)

        return await self._read(run)

    async def fetch_value(self, sql: str, *args: Any) -> Any:
        async def run(connection: Connection) -> Any:
            return await connection.fetchval(sql, *args)

        return await self._read(run)

    async def search(self, sql: str, *args: Any) -> list[Row]:
        async def run(connection: Connection) -> list[Row]:
            timeout = int(SEARCH_TIMEOUT_SECONDS * 1000)
            await connection.execute(f"BEGIN; SET LOCAL statement_timeout = {timeout}")
            try:
                return [dict(record) for record in await connection.fetch(sql, *args)]
            finally:
                if not connection.is_closed():
                    await connection.execute("ROLLBACK")

        try:
            async with asyncio.timeout(SEARCH_TIMEOUT_SECONDS):
                await self._search_slots.acquire()
        except TimeoutError:
            raise Unavailable("too many searches are under way") from None
        try:
            return await self._read(run)
        except Unavailable as error:
            if is_timeout(error.__cause__):
                raise TooSlow(f"the search took longer than {SEARCH_TIMEOUT_SECONDS:g} seconds") from error
            raise
        finally:
            self._search_slots.release()

    def transaction(self) -> PostgresTransaction:
        return PostgresTransaction(self)

    def listen(self, channel: str, callback: Callable[[], None]) -> None:
        """The callback is also called after a reconnect, in case a notification was lost."""
        self._listener.add(channel, callback)

    async def close(self) -> None:
        self._closed = True
        await self._listener.stop()
        if self._endings:
            await asyncio.wait(self._endings)
        await self._pool.close()

    async def _read(self, run: Callable[[Connection], Awaitable[T]]) -> T:
        connection, result = await self._run_with_retries(run)
        self._pool.release(connection)
        return result

    async def _run_with_retries(self, run: Callable[[Connection], Awaitable[T]]) -> tuple[Connection, T]:
        """Run a statement without effects. Reconnects, and waits for a server that restarts."""
        for delay in RECONNECT_DELAYS_SECONDS:
            if self._closed:
                raise Unavailable("the database is closed")
            connection: Connection = None
            try:
                connection = await self._pool.acquire()
                return connection, await run(connection)
            except DRIVER_ERRORS as error:
                closed = connection is not None and connection.is_closed()
                is_lost = is_connection_lost(error, closed)
                if connection is not None:
                    self._discard(connection, is_lost)
                if not is_lost or delay == RECONNECT_DELAYS_SECONDS[-1]:
                    raise translate_error(error, closed) from error
            except BaseException:
                if connection is not None:
                    self._in_background(self._roll_back(connection))
                raise
            await asyncio.sleep(delay)
        raise AssertionError("the last attempt raises")

    def _discard(self, connection: Connection, is_lost: bool) -> None:
        if is_lost:
            connection.terminate()
        self._pool.release(connection)

    async def _begin(self) -> Connection:
        connection, _ = await self._run_with_retries(lambda connection: connection.execute("BEGIN READ WRITE"))
        return connection

    async def _commit(self, connection: Connection, channels: Iterable[str]) -> None:
        """Commit in one round trip with the notifications, which PostgreSQL sends after the commit."""
        script = "".join(f"NOTIFY {CHANNEL}, '{channel}';" for channel in channels) + "COMMIT"
        try:
            status = await connection.execute(script)
        except DRIVER_ERRORS as error:
            closed = connection.is_closed()
            await self._roll_back(connection)
            raise self._translate(error, closed) from error
        self._pool.release(connection)
        if status != "COMMIT":
            raise StoreError(f"the transaction ended with {status} instead of COMMIT")
        self.commits += 1

    def _translate(self, error: Exception, closed: bool) -> StoreError:
        """The interface's error for an error of a transaction."""
        translated = translate_error(error, closed)
        if isinstance(translated, StorageFull):
            self.last_full_at = time.monotonic()
        return translated

    async def _roll_back(self, connection: Connection) -> None:
        try:
            if not connection.is_closed():
                await connection.execute("ROLLBACK")
        except DRIVER_ERRORS:
            connection.terminate()
        self._pool.release(connection)

    def _in_background(self, ending: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """End a transaction in a separate task, so that cancelling the caller does not interrupt it."""
        task = asyncio.get_running_loop().create_task(ending)
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)
        return task


class PostgresTransaction:
    __slots__ = ("_channels", "_connection", "_database", "_failure", "_task")

    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database
        self._connection: Connection | None = None
        self._channels: dict[str, None] = {}
        self._failure: BaseException | None = None
        self._task: asyncio.Task[Any] | None = None

    async def __aenter__(self) -> PostgresTransaction:
        task = asyncio.current_task()
        assert task is not None
        if task in self._database._tasks_in_transaction:
            raise RuntimeError("a nested transaction could wait for the outer one")
        self._connection = await self._database._begin()
        self._task = task
        self._database._tasks_in_transaction.add(task)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        database, connection = self._database, self._connection
        assert self._task is not None
        database._tasks_in_transaction.discard(self._task)
        self._connection = None
        if error is None and self._failure is None:
            await asyncio.shield(database._in_background(database._commit(connection, self._channels)))
            return
        ending = database._in_background(database._roll_back(connection))
        if isinstance(error, Exception) or error is None:
            await asyncio.shield(ending)
        if error is None:
            raise StoreError("a statement of the transaction failed, and the failure was ignored") from self._failure

    async def fetch(self, sql: str, *args: Any) -> list[Row]:
        return [dict(record) for record in await self._run(self._open_connection().fetch(sql, *args))]

    async def fetch_one(self, sql: str, *args: Any) -> Row | None:
        record = await self._run(self._open_connection().fetchrow(sql, *args))
        return None if record is None else dict(record)

    async def fetch_value(self, sql: str, *args: Any) -> Any:
        return await self._run(self._open_connection().fetchval(sql, *args))

    async def execute(self, sql: str, *args: Any) -> int:
        status: str = await self._run(self._open_connection().execute(sql, *args))
        command, _, count = status.rpartition(" ")
        return int(count) if command.startswith(("INSERT", "UPDATE", "DELETE")) else 0

    async def execute_many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        await self._run(self._open_connection().executemany(sql, rows))

    async def lock(self, key: str) -> None:
        await self._run(self._open_connection().execute("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", key))

    def notify(self, channel: str) -> None:
        if "'" in channel:
            raise ValueError("the channel's name must not contain quotes")
        self._channels[channel] = None

    def _open_connection(self) -> Connection:
        if self._connection is None:
            raise RuntimeError("the transaction is not open")
        if self._failure is not None:
            raise StoreError("a statement of this transaction has failed before") from self._failure
        return self._connection

    async def _run(self, statement: Awaitable[T]) -> T:
        try:
            return await statement
        except DRIVER_ERRORS as error:
            self._failure = error
            closed = self._connection.is_closed() if self._connection else True
            raise self._database._translate(error, closed) from error
        except BaseException as error:
            self._failure = error
            raise
