"""Tasks that a process runs beside its work, until it stops."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from typing import Any

from kilonova.startup_checks import CannotStart

log = logging.getLogger(__name__)


class BackgroundTasks:
    """Tasks that run until the process stops. The failure of one stops the process."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._failure: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()

    def start(self, stack: AsyncExitStack, work: Coroutine[Any, Any, None]) -> None:
        """Start a task, which the stack cancels."""
        task = asyncio.create_task(work)

        def ended(done: asyncio.Task[None]) -> None:
            if not done.cancelled() and (error := done.exception()) is not None and not self._failure.done():
                log.critical("a part of the %s has failed", self._owner, exc_info=error)
                self._failure.set_result(error)

        async def cancel() -> None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        task.add_done_callback(ended)
        stack.push_async_callback(cancel)

    async def run_until(self, stop: asyncio.Event) -> None:
        """Wait for `stop`. Raises CannotStart if a task fails before."""
        waiting = asyncio.ensure_future(stop.wait())
        await asyncio.wait((waiting, self._failure), return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if self._failure.done():
            raise CannotStart(f"a part of the {self._owner} has failed: {self._failure.result()}; see the log")
