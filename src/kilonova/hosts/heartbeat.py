"""Heartbeats: one statement tells that every service of this process is alive."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Sequence

from kilonova import clock
from kilonova.hosts.registry import COMPUTE, Service
from kilonova.store import Database, Row, Unavailable

log = logging.getLogger(__name__)

REPORT_INTERVAL = 10.0
DOWN_TIME = 60.0


def is_up(service: Row, now: float, down_time: float = DOWN_TIME) -> bool:
    """Whether a row of `services` counts as alive: heard of lately, and not declared down by an operator."""
    return not service["forced_down"] and now - service["last_seen_at"] <= down_time


def _none_silent(hosts: Iterable[str]) -> Collection[str]:
    return ()


class Heartbeat:
    def __init__(
        self,
        db: Database,
        services: Sequence[Service],
        *,
        interval: float = REPORT_INTERVAL,
        silent: Callable[[Iterable[str]], Collection[str]] = _none_silent,
    ) -> None:
        """`silent` says which of the hosts are cut off, and so must not be reported for."""
        self._db = db
        self._services = services
        self._interval = interval
        self._silent = silent

    async def beat(self) -> int:
        """Reports once; the number of services reported. The first beat belongs to the start of the process."""
        silent = set(self._silent(service.host for service in self._services if service.binary == COMPUTE))
        alive = [s.id for s in self._services if s.binary != COMPUTE or s.host not in silent]
        async with self._db.transaction() as tx:
            return await tx.execute(
                "UPDATE services SET last_seen_at = $1, report_count = report_count + 1 WHERE id = ANY($2)",
                clock.now(),
                alive,
            )

    async def run(self) -> None:
        """Reports until cancelled."""
        while True:
            await asyncio.sleep(self._interval)
            try:
                await self.beat()
            except Unavailable as trouble:
                log.warning("no heartbeat this time: %s", trouble)
