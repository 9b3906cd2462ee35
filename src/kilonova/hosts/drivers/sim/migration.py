"""A simulated live migration: it takes time, reports progress, and can be forced to complete."""

from __future__ import annotations

import asyncio
import time

from kilonova.hosts.drivers.base import DriverError
from kilonova.hosts.messages import GuestState, MigrationState

_MEGABYTE, _GIGABYTE = 2**20, 2**30
_POLL_SECONDS = 0.05


class Migration:
    def __init__(self, guest: GuestState, moves_disks: bool, seconds: float) -> None:
        if guest.power not in ("running", "paused"):
            raise DriverError(f"guest {guest.id} does not run")
        self._memory = guest.ram_mb * _MEGABYTE
        self._disk = guest.disk_gb * _GIGABYTE if moves_disks else 0
        self._seconds = seconds
        self._began = time.monotonic()
        self._hurried = asyncio.Event()

    async def advance(self) -> bool:
        """Wait for a short while. Return False when the migration is complete."""
        remaining = self._began + self._seconds - time.monotonic()
        if remaining <= 0 or self._hurried.is_set():
            return False
        try:
            async with asyncio.timeout(min(remaining, _POLL_SECONDS)):
                await self._hurried.wait()
        except TimeoutError:
            pass
        return True

    def hurry(self) -> None:
        self._hurried.set()

    def state(self) -> MigrationState:
        elapsed = time.monotonic() - self._began
        done = 1.0 if self._hurried.is_set() or elapsed >= self._seconds else elapsed / self._seconds
        return MigrationState(
            memory_total=self._memory,
            memory_processed=int(self._memory * done),
            disk_total=self._disk,
            disk_processed=int(self._disk * done),
        )
