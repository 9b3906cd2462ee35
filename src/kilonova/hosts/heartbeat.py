"""Heartbeats: a process registers the hosts it serves, and tells with one statement that they are alive."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

from kilonova import clock
from kilonova.hosts.messages import HostFacts
from kilonova.hosts.registry import COMPUTE, CONDUCTOR, SCHEDULER, Service, register
from kilonova.store import Database, Row, StoreError

log = logging.getLogger(__name__)

REPORT_INTERVAL = 10.0
DOWN_TIME = 60.0


def is_up(service: Row, now: float, down_time: float = DOWN_TIME) -> bool:
    """Whether a row of `services` counts as alive: heard of lately, and not declared down by an operator."""
    return not service["forced_down"] and now - service["last_seen_at"] <= down_time


class ServedHosts(Protocol):
    """The hosts a process answers for."""

    @property
    def names(self) -> Sequence[str]: ...

    async def facts(self, hosts: Iterable[str]) -> list[HostFacts]:
        """Of those that answer."""

    def silent(self, hosts: Iterable[str]) -> Collection[str]:
        """Those that are cut off and must not be reported for."""


class Heartbeat:
    """`hosts`: those this process serves, if any. `process_host`: where it works and schedules, if it does."""

    def __init__(
        self,
        db: Database,
        hosts: ServedHosts | None = None,
        *,
        process_host: str | None = None,
        interval: float = REPORT_INTERVAL,
    ) -> None:
        self._db = db
        self._hosts = hosts
        self._process_host = process_host
        self._interval = interval
        self._services: dict[tuple[str, str], Service] = {}

    async def beat(self) -> int:
        """Registers who is not registered yet, then reports; the number of services reported.

        The first beat is the start of the process. Hosts that are cut off then come in with a later one.
        """
        silent = set(self._hosts.silent(self._hosts.names)) if self._hosts is not None else set()
        await self._register(silent)
        alive = [s.id for s in self._services.values() if s.program != COMPUTE or s.host not in silent]
        async with self._db.transaction() as tx:
            reported = await tx.execute(
                "UPDATE services SET last_seen_at = $1, report_count = report_count + 1 WHERE id = ANY($2)",
                clock.now(),
                alive,
            )
        if reported < len(alive):
            await self._forget_deleted()
        return reported

    async def run(self) -> None:
        """Reports until cancelled."""
        while True:
            await asyncio.sleep(self._interval)
            try:
                await self.beat()
            except StoreError as trouble:
                log.warning("no heartbeat this time: %s", trouble)

    async def _register(self, silent: set[str]) -> None:
        newcomers: list[HostFacts] = []
        if self._hosts is not None:
            awaited = [h for h in self._hosts.names if (h, COMPUTE) not in self._services and h not in silent]
            newcomers = await self._hosts.facts(awaited) if awaited else []
        known = all((self._process_host, program) in self._services for program in (CONDUCTOR, SCHEDULER))
        process_host = None if known else self._process_host
        if newcomers or process_host is not None:
            services = await register(self._db, newcomers, process_host=process_host)
            self._services |= {(service.host, service.program): service for service in services}

    async def _forget_deleted(self) -> None:
        """An operator deleted services that are alive: the next beat registers them again."""
        numbers = [service.id for service in self._services.values()]
        left = {row["id"] for row in await self._db.fetch("SELECT id FROM services WHERE id = ANY($1)", numbers)}
        self._services = {key: service for key, service in self._services.items() if service.id in left}
