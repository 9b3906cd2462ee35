"""Waiting for what libvirt tells of a guest."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from kilonova.hosts.drivers.libvirt.connection import Connection, Event

# Events are hints: one may be lost with the connection, so it is looked as well.
_LOOK_EVERY = 1.0


class Waiting:
    def __init__(self) -> None:
        self._happened = asyncio.Event()
        self.seen: list[Event] = []

    def hear(self, event: Event) -> None:
        self.seen.append(event)
        self._happened.set()

    async def next(self, seconds: float) -> bool:
        """Until something happens, or it is time to look; False when the seconds are over."""
        if seconds <= 0:
            return False
        try:
            async with asyncio.timeout(min(seconds, _LOOK_EVERY)):
                await self._happened.wait()
        except TimeoutError:
            pass
        self._happened.clear()
        return True


@asynccontextmanager
async def events_of(connection: Connection, guest_id: str) -> AsyncIterator[Waiting]:
    """Hears what happens to the guest from now on."""
    waiting = Waiting()

    def hear(event: Event) -> None:
        if event.guest_id == guest_id or event.kind == "reconnected":
            waiting.hear(event)

    stop: Callable[[], None] = connection.on_event(hear)
    try:
        yield waiting
    finally:
        stop()
