"""Lets other requests run while one request computes for long."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import TypeVar

# How long a computation may block the event loop.
_YIELD_SECONDS = 0.005

Item = TypeVar("Item")


class LoopYielder:
    """Yields to the event loop from time to time."""

    def __init__(self) -> None:
        self._until = time.monotonic() + _YIELD_SECONDS

    async def maybe_yield(self) -> None:
        if time.monotonic() >= self._until:
            await asyncio.sleep(0)
            self._until = time.monotonic() + _YIELD_SECONDS


async def collect(items: Iterable[Item]) -> list[Item]:
    """Make a list of items that are computed while they are iterated over. There may be many."""
    yielder, collected = LoopYielder(), []
    for item in items:
        collected.append(item)
        await yielder.maybe_yield()
    return collected
