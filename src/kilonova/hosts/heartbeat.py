"""Heartbeats: a process registers the hosts it serves, and tells with one statement that they are alive.

A host on which guests are to be cleared, because their servers are elsewhere or gone, is fenced: it is not told to be
alive before that is done. See docs/decisions/0012-silent-hosts.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

from kilonova import clock
from kilonova.hosts.messages import HostFacts
from kilonova.hosts.registry import COMPUTE, CONDUCTOR, SCHEDULER, Service, register
from kilonova.operations.requests import try_again
from kilonova.store import Database, Row, StoreError

log = logging.getLogger(__name__)

REPORT_INTERVAL = 10.0
DOWN_TIME = 60.0
# How soon a host that is being cleared is looked at again. It doubles while nothing changes there.
SOON = 0.5
# Hosts often come together, as after a power cut: one beat is for all.
_TOGETHER = 0.05

# Also what is still being evacuated: its guest is to be cleared next. Few are unfinished, and `run_at` leads to the
# index of these. What is only kept in a slot does not run, and is no reason to give up a host with all its guests.
_CLEARING = """
SELECT id, host, kind = 'clear slot' AS kept FROM operations
WHERE kind IN ('clear guest', 'clear slot') AND finished_at IS NULL AND run_at >= 0 AND host IS NOT NULL
UNION ALL
SELECT o.id, m.source_host AS host, FALSE AS kept FROM operations o JOIN moves m ON m.operation_id = o.id
WHERE o.kind = 'evacuate' AND o.finished_at IS NULL AND o.run_at >= 0
"""


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
        """Those that are cut off."""

    def outdated(self, hosts: Iterable[str]) -> Collection[str]:
        """Those that may be made of something else by now."""


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
        self._pause = interval
        self._clearing: set[str] = set()
        self._beating = asyncio.Lock()
        self._early: asyncio.Task[None] | None = None
        self._refreshing: asyncio.Task[None] | None = None
        self._woken = False

    async def beat(self) -> int:
        """Registers who is not registered yet, then reports; the number of services reported.

        The first beat is the start of the process. Hosts that are cut off or fenced then come in with a later one.
        """
        silent = set(self._hosts.silent(self._hosts.names)) if self._hosts is not None else set()
        clearing = await self._clearings(self._hosts) if self._hosts is not None else []
        held = silent | {row["host"] for row in clearing if not row["kept"]}
        await self._register(held)
        alive = [s.id for s in self._services.values() if s.program != COMPUTE or s.host not in held]
        async with self._db.transaction() as tx:
            reported = await tx.execute(
                "UPDATE services SET last_seen_at = $1, report_count = report_count + 1 WHERE id = ANY($2)",
                clock.now(),
                alive,
            )
        if reported < len(alive):
            await self._forget_deleted()
        if self._hosts is not None:
            # Last: one that hangs must not keep the others from being reported.
            await self._clear_now(await self._back(self._hosts, clearing, silent))
        return reported

    async def run(self) -> None:
        """Reports until cancelled."""
        try:
            while True:
                await asyncio.sleep(self._pause)
                await self._try()
        finally:
            beside = [task for task in (self._early, self._refreshing) if task is not None]
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)

    def wake(self) -> None:
        """A host has come, or come back: do not wait for the next beat."""
        self._woken = True
        if self._early is None or self._early.done():
            self._early = asyncio.create_task(self._beat_early())

    async def _beat_early(self) -> None:
        while self._woken:
            await asyncio.sleep(_TOGETHER)
            self._woken = False
            await self._try()

    async def _try(self) -> None:
        async with self._beating:
            try:
                await self.beat()
            except StoreError as trouble:
                log.warning("no heartbeat this time: %s", trouble)

    async def _clearings(self, hosts: ServedHosts) -> list[Row]:
        """What is to be cleared, with its host. Hosts that are to clear a guest are fenced, and not reported."""
        served = set(hosts.names)
        return [row for row in await self._db.fetch(_CLEARING) if row["host"] in served]

    async def _back(self, hosts: ServedHosts, clearing: Iterable[Row], silent: set[str]) -> dict[str, str]:
        """What is to be cleared on hosts that answer."""
        asked = sorted({row["host"] for row in clearing} - silent)
        answered = {facts.host for facts in await hosts.facts(asked)} if asked else set()
        return {row["id"]: row["host"] for row in clearing if row["host"] in answered}

    async def _clear_now(self, clearing: dict[str, str]) -> None:
        """Hosts that answer are cleared at once. Until they are, the next beats come soon, then less and less so."""
        if not clearing:
            self._pause = self._interval
        elif clearing.keys() != self._clearing:
            log.info("hosts clear guests", extra={"hosts": sorted(set(clearing.values()))})
            self._pause = min(SOON, self._interval)
        else:
            self._pause = min(2 * self._pause, self._interval)
        self._clearing = set(clearing)
        if clearing:
            async with self._db.transaction() as tx:
                for operation_id in clearing:
                    await try_again(tx, operation_id)

    async def _register(self, held: set[str]) -> None:
        newcomers: list[HostFacts] = []
        if self._hosts is not None:
            present = [host for host in self._hosts.names if host not in held]
            outdated = set(self._hosts.outdated(present))
            awaited = [host for host in present if (host, COMPUTE) not in self._services and host not in outdated]
            newcomers = await self._hosts.facts(awaited) if awaited else []
            if outdated and (self._refreshing is None or self._refreshing.done()):
                self._refreshing = asyncio.create_task(self._refresh(self._hosts, sorted(outdated)))
        known = all((self._process_host, program) in self._services for program in (CONDUCTOR, SCHEDULER))
        process_host = None if known else self._process_host
        if newcomers or process_host is not None:
            services = await register(self._db, newcomers, process_host=process_host)
            self._services |= {(service.host, service.program): service for service in services}

    async def _refresh(self, hosts: ServedHosts, outdated: list[str]) -> None:
        """Ask hosts what they consist of, beside the beats: one that hangs keeps no other from being reported."""
        try:
            found = await hosts.facts(outdated)
            services = await register(self._db, found) if found else []
        except StoreError as trouble:
            log.warning("hosts are not registered this time: %s", trouble)
            return
        known = {(service.host, service.program): service for service in services}
        newcomers = known.keys() - self._services.keys()
        self._services |= known
        if newcomers:
            self.wake()

    async def _forget_deleted(self) -> None:
        """An operator deleted services that are alive: the next beat registers them again."""
        numbers = [service.id for service in self._services.values()]
        left = {row["id"] for row in await self._db.fetch("SELECT id FROM services WHERE id = ANY($1)", numbers)}
        self._services = {key: service for key, service in self._services.items() if service.id in left}
