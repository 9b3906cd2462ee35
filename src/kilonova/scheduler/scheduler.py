"""The scheduler of one process: keeps the snapshot current and makes plans from it."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from kilonova.hosts.heartbeat import DOWN_SECONDS
from kilonova.scheduler import plugins
from kilonova.scheduler.candidates import Plan
from kilonova.scheduler.config import SchedulerConfig
from kilonova.scheduler.request import Request
from kilonova.store import Database

if TYPE_CHECKING:
    from kilonova.scheduler.dry_run import NextRequest
    from kilonova.scheduler.plan import Planner, Sliced
    from kilonova.scheduler.snapshot import Hosts
    from kilonova.scheduler.snapshot_loader import SnapshotLoader

log = logging.getLogger(__name__)


class Scheduler:
    """Plans are made outside any transaction, claims inside one:

        plan = await scheduler.plan(request)                       # a step of its own; no candidates: no valid host
        async with db.transaction() as tx:                         # the next step's transaction
            taken = await claim_first(tx, plan.candidates, consumer)
            ...                                                    # write the server's host in the same transaction
        if taken is None:                                          # all candidates lost: the operation goes back a step
            plan = await scheduler.plan(request, lost=plan.uuids)

    `dry_run` makes plans without claims.
    """

    def __init__(self, db: Database, config: SchedulerConfig | None = None, down_seconds: float = DOWN_SECONDS) -> None:
        """Raises ValueError if the configuration names an unknown filter or weigher."""
        self._db = db
        self._down_seconds = down_seconds
        self._config = config or SchedulerConfig()
        plugins.check(plugins.FILTERS, self._config.filters)
        plugins.check(plugins.WEIGHERS, self._config.weights)
        self._loader: SnapshotLoader | None = None
        self._planner: Planner | None = None
        self._refresh_lock = asyncio.Lock()
        self._refreshed_at = -math.inf  # when the last refresh began
        self._reload_due = math.inf
        self._reloading: asyncio.Task[None] | None = None

    async def warm(self) -> None:
        """Import numpy in a thread and read all hosts, so that the first plan is as fast as the others."""
        await asyncio.to_thread(_import_numpy_modules)
        await self._refresh(time.monotonic())

    async def plan(self, request: Request, *, lost: Sequence[str] = ()) -> Plan:
        """The best hosts for a request. `lost`: uuids of candidates whose claims failed."""
        loader, planner = self._loader_and_planner()
        hosts = loader.hosts
        began = time.monotonic()
        if lost:
            self._discard_proposal(loader, lost)
        await self._refresh(began if lost else began - self._config.refresh_seconds)
        hosts.proposals.expire(began)
        hosts.loads.expire(began)
        plan = await _run_sliced(planner.plan_in_slices(request, hosts), nullcontext)
        if not plan.candidates:
            # Refuse only on current data, and not because of proposals, whose claims may fail.
            await self._refresh(began)
            plan = await _run_sliced(planner.plan_in_slices(request, hosts), hosts.proposals.suspended)
        self._add_proposal(hosts, plan)
        return plan

    async def dry_run(self, next_request: NextRequest) -> list[Plan]:
        """Plans for several servers without claims; see `scheduler.dry_run`."""
        planner, hosts = await self.current_hosts()
        from kilonova.scheduler.dry_run import plan_dry_run

        return await plan_dry_run(planner, hosts, next_request)

    async def rebuild_objections(self, request: Request) -> list[str]:
        """Reasons why a server cannot stay on the request's host with the request's image."""
        planner, hosts = await self.current_hosts()
        return planner.rebuild_objections(request, hosts)

    async def current_hosts(self) -> tuple[Planner, Hosts]:
        """The planner, and the hosts as they are in the database now."""
        if self._planner is None:
            await asyncio.to_thread(_import_numpy_modules)
        await self._refresh(time.monotonic())
        loader, planner = self._loader_and_planner()
        loader.hosts.loads.expire(time.monotonic())
        return planner, loader.hosts

    def record_build(self, host: str, succeeded: bool) -> None:
        """Remember whether a host built a server: hosts that failed come last."""
        self._loader_and_planner()[0].hosts.loads.record_build(host, succeeded)

    def mark_unreachable(self, host: str) -> None:
        """Let a host that did not respond come last until its missing heartbeats show, or until it builds a server."""
        self._loader_and_planner()[0].hosts.loads.unreachable[host] = time.monotonic() + self._down_seconds

    async def close(self) -> None:
        if self._reloading is not None:
            self._reloading.cancel()
            await asyncio.gather(self._reloading, return_exceptions=True)

    def _loader_and_planner(self) -> tuple[SnapshotLoader, Planner]:
        if self._loader is None or self._planner is None:
            from kilonova.scheduler.plan import Planner
            from kilonova.scheduler.snapshot_loader import SnapshotLoader

            self._planner = Planner(self._config)
            self._loader = SnapshotLoader(self._db, self._config, self._down_seconds, self._planner.counts)
        return self._loader, self._planner

    def _add_proposal(self, hosts: Hosts, plan: Plan) -> None:
        """Count the best candidate as used: most likely it will be claimed."""
        for best in plan.candidates[:1]:
            hosts.add_proposal(best.uuid, best.allocations, time.monotonic() + self._config.proposal_seconds)

    def _discard_proposal(self, loader: SnapshotLoader, lost: Sequence[str]) -> None:
        loader.hosts.discard_proposal(lost[0])
        loader.mark_stale(lost)

    async def _refresh(self, not_before: float) -> None:
        """Refresh the snapshot unless it was refreshed since `not_before`. Concurrent callers share one refresh."""
        if self._refreshed_at >= not_before:
            return
        loader, _ = self._loader_and_planner()
        async with self._refresh_lock:
            if self._refreshed_at >= not_before:
                return
            began = time.monotonic()
            await loader.refresh()
            if self._refreshed_at < 0:
                self._schedule_reload(began)
            self._refreshed_at = began
        if began >= self._reload_due:
            self._reload_due = math.inf
            self._reloading = asyncio.create_task(self._reload(loader))

    async def _reload(self, loader: SnapshotLoader) -> None:
        began = time.monotonic()
        try:
            await loader.reload()
        except Exception:
            log.exception("scheduler: cannot reload all hosts; continuing with changes only")
        self._schedule_reload(began)

    def _schedule_reload(self, began: float) -> None:
        """Schedule the next full load. `began`: the start of the last one. Loads take at most 1 % of the time."""
        now = time.monotonic()
        self._reload_due = now + max(self._config.reload_seconds, 100 * (now - began))


async def _run_sliced(slices: Sliced[Plan], within: Callable[[], AbstractContextManager[None]]) -> Plan:
    """Run other tasks between the slices of a plan; each slice runs inside a new `within()`."""
    while True:
        with within():
            try:
                next(slices)
            except StopIteration as end:
                plan: Plan = end.value
                return plan
        await asyncio.sleep(0)


def _import_numpy_modules() -> None:
    pass
