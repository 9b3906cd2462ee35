"""Receives NOTIFY on one connection, and reconnects when it is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import asyncpg

from kilonova.store.postgres_errors import DRIVER_ERRORS
from kilonova.store.postgres_pool import Connection, close_quietly
from kilonova.store.sessions import session_name

CHANNEL = "kilonova"
"""The one PostgreSQL channel. The payload of a notification is the name of our channel."""

HEARTBEAT_SECONDS = 30.0


class Listener:
    def __init__(self, url: str) -> None:
        self._url = url
        self._callbacks: dict[str, list[Callable[[], None]]] = {}
        self._connection: Connection | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._connection = await self._connect()
        self._task = asyncio.get_running_loop().create_task(self._stay_connected())

    def add(self, channel: str, callback: Callable[[], None]) -> None:
        self._callbacks.setdefault(channel, []).append(callback)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._connection is not None:
            await close_quietly(self._connection)

    async def _connect(self) -> Connection:
        connection = await asyncpg.connect(
            self._url, timeout=10, command_timeout=10, server_settings={"application_name": session_name()}
        )
        try:
            await connection.add_listener(CHANNEL, self._notified)
        except BaseException:
            connection.terminate()
            raise
        return connection

    async def _stay_connected(self) -> None:
        while True:
            if self._connection is not None:
                await self._until_lost(self._connection)
            self._connection = None
            try:
                self._connection = await self._connect()
            except DRIVER_ERRORS:
                await asyncio.sleep(0.5)
                continue
            self._call_all()  # notifications may have been missed

    async def _until_lost(self, connection: Connection) -> None:
        """Wait until the connection is lost. A heartbeat detects a connection that was not closed properly."""
        closed = asyncio.Event()
        connection.add_termination_listener(lambda _: closed.set())
        try:
            while not connection.is_closed():
                try:
                    async with asyncio.timeout(HEARTBEAT_SECONDS):
                        await closed.wait()
                except TimeoutError:
                    await connection.execute("SELECT 1")
        except DRIVER_ERRORS:
            pass
        finally:
            connection.terminate()

    def _notified(self, connection: Any, pid: int, name: str, channel: str) -> None:
        for callback in self._callbacks.get(channel, ()):
            asyncio.get_running_loop().call_soon(callback)

    def _call_all(self) -> None:
        for callbacks in self._callbacks.values():
            for callback in callbacks:
                asyncio.get_running_loop().call_soon(callback)
