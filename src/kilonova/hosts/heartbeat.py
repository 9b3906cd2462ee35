"""Heartbeats: a process registers the hosts it serves, and reports with one statement that they are up.

A host with guests to remove, because their servers were moved or deleted, is fenced: it is not reported as up until the
cleanup is done. See docs/decisions/0012-unreachable-hosts.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import NamedTuple, Protocol

from kilonova import clock
from kilonova.hosts.messages import HostFacts
from kilonova.hosts.registry import COMPUTE, CONDUCTOR, SCHEDULER, register
from kilonova.hosts.service import Service
from kilonova.operations.control import retry_now
from kilonova.store import Database, StoreError

log = logging.getLogger(__name__)

REPORT_INTERVAL_SECONDS = 10.0
DOWN_SECONDS = 60.0
# Interval of beats during a cleanup. Doubles while the cleanup makes no progress.
CLEANUP_RETRY_SECONDS = 0.5
# Many hosts often come back together, as after a power cut: one beat serves them all.
_DEBOUNCE_SECONDS = 0.05


class Reporting(Protocol):
    """A service that reports."""

    @property
    def forced_down(self) -> bool: ...

    @property
    def last_seen_at(self) -> float: ...


def is_up(service: Reporting, now: float, down_seconds: float = DOWN_SECONDS) -> bool:
    """Return whether a service reported recently and is not forced down."""
    return not service.forced_down and now - service.last_seen_at <= down_seconds


class ServedHosts(Protocol):
    """The hosts that a process serves."""

    @property
    def names(self) -> Sequence[str]: ...

    async def facts(self, hosts: Iterable[str]) -> list[HostFacts]:
        """Return the facts of the hosts that respond."""

    def unreachable(self, hosts: Iterable[str]) -> Collection[str]:
        """Return which of the hosts are unreachable."""

    def outdated(self, hosts: Iterable[str]) -> Collection[str]:
        """Return which of the hosts may have changed since they were described."""


class PendingCleanup(NamedTuple):
    """An unfinished operation that removes a guest from a host. `fences`: the host is not up until it is done."""

    operation_id: str
    host: str
    fences: bool


async def _no_cleanups(db: Database) -> Sequence[PendingCleanup]:
    return ()


class Heartbeat:
    """`hosts`: the hosts that this process serves. `process_host`: the host name of its conductor and scheduler.

    `find_cleanups` returns the pending cleanups of all hosts.
    """

    def __init__(
        self,
        db: Database,
        hosts: ServedHosts | None = None,
        *,
        process_host: str | None = None,
        interval: float = REPORT_INTERVAL_SECONDS,
        find_cleanups: Callable[[Database], Awaitable[Sequence[PendingCleanup]]] = _no_cleanups,
    ) -> None:
        self._db = db
        self._hosts = hosts
        self._process_host = process_host
        self._interval = interval
        self._find_cleanups = find_cleanups
        self._services: dict[tuple[str, str], Service] = {}
        self._pause = interval
        self._last_cleanups: set[str] = set()
        self._lock = asyncio.Lock()
        self._early_beat: asyncio.Task[None] | None = None
        self._refresh_task: asyncio.Task[None] | None = None
        self._woken = False

    async def beat(self) -> int:
        """Register new services, then report all services as up. Return the number of services reported.

        A host that is unreachable or fenced at the first beat is registered by a later one.
        """
        unreachable = set(self._hosts.unreachable(self._hosts.names)) if self._hosts is not None else set()
        cleanups = await self._cleanups(self._hosts) if self._hosts is not None else []
        down = unreachable | {cleanup.host for cleanup in cleanups if cleanup.fences}
        await self._register(down)
        alive = [s.id for s in self._services.values() if s.program != COMPUTE or s.host not in down]
        async with self._db.transaction() as tx:
            reported = await tx.execute(
                "UPDATE services SET last_seen_at = $1, report_count = report_count + 1 WHERE id = ANY($2)",
                clock.now(),
                alive,
            )
        if reported < len(alive):
            await self._forget_deleted()
        if self._hosts is not None:
            # Last: a host that hangs must not delay the report of other hosts.
            await self._retry_cleanups(await self._runnable(self._hosts, cleanups, unreachable))
        return reported

    def is_registered(self, host: str) -> bool:
        return (host, COMPUTE) in self._services

    async def run(self) -> None:
        """Beat until cancelled."""
        try:
            while True:
                await asyncio.sleep(self._pause)
                await self._try()
        finally:
            tasks = [task for task in (self._early_beat, self._refresh_task) if task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def wake(self) -> None:
        """Beat soon, because a host is new or reachable again."""
        self._woken = True
        if self._early_beat is None or self._early_beat.done():
            self._early_beat = asyncio.create_task(self._beat_early())

    async def _beat_early(self) -> None:
        while self._woken:
            await asyncio.sleep(_DEBOUNCE_SECONDS)
            self._woken = False
            await self._try()

    async def _try(self) -> None:
        async with self._lock:
            try:
                await self.beat()
            except StoreError as error:
                log.warning("heartbeat failed: %s", error)

    async def _cleanups(self, hosts: ServedHosts) -> list[PendingCleanup]:
        served = set(hosts.names)
        return [cleanup for cleanup in await self._find_cleanups(self._db) if cleanup.host in served]

    async def _runnable(
        self, hosts: ServedHosts, cleanups: Iterable[PendingCleanup], unreachable: set[str]
    ) -> dict[str, str]:
        """Return the cleanups on hosts that respond: operation id → host."""
        names = sorted({cleanup.host for cleanup in cleanups} - unreachable)
        responding = {facts.host for facts in await hosts.facts(names)} if names else set()
        return {cleanup.operation_id: cleanup.host for cleanup in cleanups if cleanup.host in responding}

    async def _retry_cleanups(self, cleanups: dict[str, str]) -> None:
        """Retry these operations now, and beat soon again to see the result."""
        if not cleanups:
            self._pause = self._interval
        elif cleanups.keys() != self._last_cleanups:
            log.info("hosts remove guests", extra={"hosts": sorted(set(cleanups.values()))})
            self._pause = min(CLEANUP_RETRY_SECONDS, self._interval)
        else:
            self._pause = min(2 * self._pause, self._interval)
        self._last_cleanups = set(cleanups)
        if cleanups:
            async with self._db.transaction() as tx:
                for operation_id in cleanups:
                    await retry_now(tx, operation_id)

    async def _register(self, down: set[str]) -> None:
        new: list[HostFacts] = []
        if self._hosts is not None:
            reachable = [host for host in self._hosts.names if host not in down]
            outdated = set(self._hosts.outdated(reachable))
            unregistered = [
                host for host in reachable if (host, COMPUTE) not in self._services and host not in outdated
            ]
            new = await self._hosts.facts(unregistered) if unregistered else []
            if outdated and (self._refresh_task is None or self._refresh_task.done()):
                self._refresh_task = asyncio.create_task(self._refresh(self._hosts, sorted(outdated)))
        is_registered = all((self._process_host, program) in self._services for program in (CONDUCTOR, SCHEDULER))
        process_host = None if is_registered else self._process_host
        if new or process_host is not None:
            services = await register(self._db, new, process_host=process_host)
            self._services |= {(service.host, service.program): service for service in services}

    async def _refresh(self, hosts: ServedHosts, outdated: list[str]) -> None:
        """Register changed facts. Runs beside the beats: a host that hangs must not delay the report of other hosts."""
        try:
            found = await hosts.facts(outdated)
            services = await register(self._db, found) if found else []
        except StoreError as error:
            log.warning("registering hosts failed: %s", error)
            return
        registered = {(service.host, service.program): service for service in services}
        new = registered.keys() - self._services.keys()
        self._services |= registered
        if new:
            self.wake()

    async def _forget_deleted(self) -> None:
        """Forget services that an operator deleted: the next beat registers them again."""
        service_ids = [service.id for service in self._services.values()]
        rows = await self._db.fetch("SELECT id FROM services WHERE id = ANY($1)", service_ids)
        existing = {row["id"] for row in rows}
        self._services = {key: service for key, service in self._services.items() if service.id in existing}
