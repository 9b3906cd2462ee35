"""Lets other requests run while one request computes for long."""

from __future__ import annotations

import asyncio
import time

# How long a computation may block the event loop.
_YIELD_SECONDS = 0.005


class LoopYielder:
    """Yields to the event loop from time to time."""

    def __init__(self) -> None:
        self._until = time.monotonic() + _YIELD_SECONDS

    async def maybe_yield(self) -> None:
        if time.monotonic() >= self._until:
            await asyncio.sleep(0)
            self._until = time.monotonic() + _YIELD_SECONDS
