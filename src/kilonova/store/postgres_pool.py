"""Pool of connections to PostgreSQL."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import asyncpg

from kilonova.store.sessions import session_name
from kilonova.store.translate import MAX_CACHED_LENGTH

Connection = Any
"""asyncpg's connection, which has no type hints."""

SERVER_SETTINGS = {
    # Statements outside a transaction cannot write; transactions begin READ WRITE.
    "default_transaction_read_only": "on",
    # A process that hangs in a transaction must not keep its locks forever.
    "idle_in_transaction_session_timeout": "60s",
    "lock_timeout": "30s",
    # Compiling a statement with hundreds of conditions takes half a minute, running it uncompiled 0.1 seconds.
    "jit": "off",
    "tcp_keepalives_idle": "30",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "3",
}


async def connect(url: str) -> Connection:
    """A connection that returns the same Python values as SQLite."""
    connection = await asyncpg.connect(
        url,
        timeout=10,
        command_timeout=60,
        statement_cache_size=1024,
        max_cacheable_statement_size=MAX_CACHED_LENGTH,
        max_cached_statement_lifetime=0,
        server_settings={"application_name": session_name(), **SERVER_SETTINGS},
    )
    try:
        await connection.set_type_codec(
            "numeric", schema="pg_catalog", encoder=str, decoder=_decode_numeric, format="text"
        )
    except BaseException:
        connection.terminate()
        raise
    return connection


def _decode_numeric(text: str) -> int | float:
    """PostgreSQL's sums of integers are NUMERIC."""
    return int(text) if text.lstrip("-").isdigit() else float(text)


class Pool:
    """Hands out connections in the order of requests, and replaces lost ones.

    Faster than asyncpg's pool: connections are released outside any transaction, so they need no reset.
    """

    def __init__(self, url: str, size: int) -> None:
        self._url = url
        self._size = size
        self._opened = 0
        self._idle: list[Connection] = []
        self._waiters: deque[asyncio.Future[Connection | None]] = deque()

    async def acquire(self) -> Connection:
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed():
                return connection
            self._opened -= 1
        if self._opened < self._size:
            self._opened += 1
        elif (connection := await self._wait()) is not None:
            return connection
        try:
            return await connect(self._url)
        except BaseException:
            self._hand_over(None)
            raise

    def release(self, connection: Connection) -> None:
        self._hand_over(None if connection.is_closed() else connection)

    async def close(self) -> None:
        """Close idle connections. Others are closed when they are released."""
        self._size = 0
        idle, self._idle = self._idle, []
        self._opened -= len(idle)
        for connection in idle:
            await close_quietly(connection)

    async def _wait(self) -> Connection | None:
        """Wait for a released connection; None means that a new one may be opened."""
        waiter: asyncio.Future[Connection | None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._hand_over(waiter.result())
            raise

    def _hand_over(self, connection: Connection | None) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(connection)
                return
        if connection is None:
            self._opened -= 1
        elif self._size == 0:
            self._opened -= 1
            connection.terminate()
        else:
            self._idle.append(connection)


async def close_quietly(connection: Connection) -> None:
    try:
        await connection.close(timeout=5)
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
        connection.terminate()
