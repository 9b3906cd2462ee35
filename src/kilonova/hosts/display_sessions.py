"""Carries the bytes of guests' displays in commands, so that no display listens on a network.

A session is one connection to a display. A session lives in the agent's memory: it ends with the agent, with the
display, or when the control plane stops reading.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from kilonova import ids
from kilonova.hosts.drivers.base import DriverError, MissingDisplay

if TYPE_CHECKING:
    from kilonova.hosts.drivers.base import Driver

# How long a read waits for data. Shorter than the caller's timeout.
READ_WAIT_SECONDS = 20.0
# A session ends this long after its last read: the control plane was stopped or is unreachable.
IDLE_TIMEOUT_SECONDS = 60.0
MAX_READ_BYTES = 131072
MAX_SESSIONS_PER_GUEST = 16


class _Session:
    def __init__(self, guest_id: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.guest_id = guest_id
        self.reader = reader
        self.writer = writer
        self.expiry: asyncio.TimerHandle | None = None


class DisplaySessions:
    """The methods are those of the verbs of displays."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._sessions: dict[str, _Session] = {}

    async def open_display(self, guest_id: str, kind: str) -> str:
        """Connect to the guest's display. Returns the id of the session."""
        if sum(session.guest_id == guest_id for session in self._sessions.values()) >= MAX_SESSIONS_PER_GUEST:
            raise DriverError(f"guest {guest_id} has {MAX_SESSIONS_PER_GUEST} open consoles, which is the limit")
        connection = await self._driver.open_display(guest_id, kind)
        connection.setblocking(False)
        reader, writer = await asyncio.open_connection(sock=connection)
        session_id = ids.new_id()
        self._sessions[session_id] = _Session(guest_id, reader, writer)
        self._expire_later(session_id)
        return session_id

    async def read_display(self, session_id: str) -> bytes | None:
        """Wait for data of the display. Returns no bytes if there were none for a while; None if the session ended."""
        session = self._sessions.get(session_id)
        if session is None:
            return None
        self._expire_later(session_id)
        try:
            async with asyncio.timeout(READ_WAIT_SECONDS):
                data = await session.reader.read(MAX_READ_BYTES)
        except TimeoutError:
            return b""
        except OSError:
            data = b""
        if not data:
            self._end(session_id)
        return data or None

    async def write_display(self, session_id: str, data: bytes) -> None:
        session = self._sessions.get(session_id)
        if session is None:
            raise MissingDisplay("the display session has ended")
        session.writer.write(data)
        with suppress(OSError):  # the next read ends the session
            await session.writer.drain()

    async def close_display(self, session_id: str) -> None:
        self._end(session_id)

    def close(self) -> None:
        """End all sessions."""
        for session_id in list(self._sessions):
            self._end(session_id)

    def _expire_later(self, session_id: str) -> None:
        session = self._sessions[session_id]
        if session.expiry is not None:
            session.expiry.cancel()
        session.expiry = asyncio.get_running_loop().call_later(IDLE_TIMEOUT_SECONDS, self._end, session_id)

    def _end(self, session_id: str) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            if session.expiry is not None:
                session.expiry.cancel()
            # A read under way gets the end of the stream. What the guest has not read yet is discarded.
            session.reader.feed_eof()
            session.writer.transport.abort()
