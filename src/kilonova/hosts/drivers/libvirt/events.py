"""Waits for libvirt's events about one guest."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from kilonova.hosts.drivers.libvirt.connection import Connection, Event

# Events are hints: a lost connection loses events, so callers check the guest at least this often.
_POLL_SECONDS = 1.0


class GuestEvents:
    def __init__(self) -> None:
        self._received = asyncio.Event()

    def notify(self) -> None:
        self._received.set()

    async def wait(self, seconds: float) -> bool:
        """Wait for an event or the polling interval, whichever comes first. False if no seconds are left."""
        if seconds <= 0:
            return False
        try:
            async with asyncio.timeout(min(seconds, _POLL_SECONDS)):
                await self._received.wait()
        except TimeoutError:
            pass
        self._received.clear()
        return True


@asynccontextmanager
async def guest_events(connection: Connection, guest_id: str) -> AsyncIterator[GuestEvents]:
    """Receive the guest's events while the context is open."""
    events = GuestEvents()

    def on_event(event: Event) -> None:
        if event.guest_id == guest_id or event.kind == "reconnected":
            events.notify()

    unsubscribe = connection.on_event(on_event)
    try:
        yield events
    finally:
        unsubscribe()
