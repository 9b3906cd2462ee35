"""Connections to PostgreSQL: how they are made, kept and lent out."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import asyncpg

Connection = Any
"""asyncpg's connection, which has no type hints."""

SETTINGS = {
    "application_name": "kilonova",
    # A read outside a transaction cannot write by mistake; transactions begin READ WRITE.
    "default_transaction_read_only": "on",
    # A process that froze in a transaction must not keep its locks for ever.
    "idle_in_transaction_session_timeout": "60s",
    "lock_timeout": "30s",
    # To compile a statement with hundreds of conditions takes half a minute, to run it as it is a tenth of a second.
    "jit": "off",
    "tcp_keepalives_idle": "30",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "3",
}


async def connect(url: str) -> Connection:
    """A connection that gives the same Python values as SQLite does."""
    connection = await asyncpg.connect(
        url,
        timeout=10,
        command_timeout=60,
        statement_cache_size=1024,
        max_cached_statement_lifetime=0,
        server_settings=SETTINGS,
    )
    try:
        await connection.set_type_codec("numeric", schema="pg_catalog", encoder=str, decoder=_number, format="text")
    except BaseException:
        connection.terminate()
        raise
    return connection


def _number(text: str) -> int | float:
    """Sums of whole numbers are NUMERIC to PostgreSQL."""
    return int(text) if text.lstrip("-").isdigit() else float(text)


class Pool:
    """Lends connections first come, first served, and replaces those that broke.

    Leaner than asyncpg's own: a connection is always given back outside any transaction, so nothing needs resetting.
    """

    def __init__(self, url: str, size: int) -> None:
        self._url = url
        self._size = size
        self._made = 0
        self._idle: list[Connection] = []
        self._waiters: deque[asyncio.Future[Connection | None]] = deque()

    async def take(self) -> Connection:
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed():
                return connection
            self._made -= 1
        if self._made < self._size:
            self._made += 1
        elif (connection := await self._wait()) is not None:
            return connection
        try:
            return await connect(self._url)
        except BaseException:
            self._give(None)
            raise

    def give_back(self, connection: Connection) -> None:
        self._give(None if connection.is_closed() else connection)

    async def close(self) -> None:
        """Close what is idle; what is lent out is closed by its return."""
        self._size = 0
        idle, self._idle = self._idle, []
        self._made -= len(idle)
        for connection in idle:
            await close_quietly(connection)

    async def _wait(self) -> Connection | None:
        """A connection that another gave back, or None for the right to make one."""
        waiter: asyncio.Future[Connection | None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._give(waiter.result())
            raise

    def _give(self, connection: Connection | None) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(connection)
                return
        if connection is None:
            self._made -= 1
        elif self._size == 0:
            self._made -= 1
            connection.terminate()
        else:
            self._idle.append(connection)


async def close_quietly(connection: Connection) -> None:
    try:
        await connection.close(timeout=5)
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
        connection.terminate()
