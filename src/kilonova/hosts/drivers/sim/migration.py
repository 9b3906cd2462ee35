"""A live migration of a simulated guest: it takes its time, and can be watched and hurried."""

from __future__ import annotations

import asyncio
import time

from kilonova.hosts.drivers.base import DriverError
from kilonova.hosts.messages import GuestState, MigrationState

_MEGABYTE, _GIGABYTE = 2**20, 2**30
_PIECE = 0.05


class Migration:
    def __init__(self, guest: GuestState, moves_disks: bool, seconds: float) -> None:
        if guest.power not in ("running", "paused"):
            raise DriverError(f"guest {guest.id} does not run")
        self._memory = guest.ram_mb * _MEGABYTE
        self._disk = guest.disk_gb * _GIGABYTE if moves_disks else 0
        self._seconds = seconds
        self._began = time.monotonic()
        self._hurried = asyncio.Event()

    async def goes_on(self) -> bool:
        """False once it is through; else a piece of it has been done."""
        left = self._began + self._seconds - time.monotonic()
        if left <= 0 or self._hurried.is_set():
            return False
        try:
            async with asyncio.timeout(min(left, _PIECE)):
                await self._hurried.wait()
        except TimeoutError:
            pass
        return True

    def hurry(self) -> None:
        self._hurried.set()

    def state(self) -> MigrationState:
        passed = time.monotonic() - self._began
        done = 1.0 if self._hurried.is_set() or passed >= self._seconds else passed / self._seconds
        return MigrationState(
            memory_total=self._memory,
            memory_processed=int(self._memory * done),
            disk_total=self._disk,
            disk_processed=int(self._disk * done),
        )
