"""The scheduler of one process: a snapshot that proposes, and the flow from proposal to claim."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from kilonova.hosts.heartbeat import DOWN_TIME
from kilonova.scheduler import plugins
from kilonova.scheduler.candidates import Plan
from kilonova.scheduler.config import SchedulerConfig
from kilonova.scheduler.request import Request
from kilonova.store import Database

if TYPE_CHECKING:
    from kilonova.scheduler.feed import Feed
    from kilonova.scheduler.plan import Pieces, Planner
    from kilonova.scheduler.rehearsal import Next
    from kilonova.scheduler.snapshot import Hosts

log = logging.getLogger(__name__)


class Scheduler:
    """Plans are made outside any transaction, claims inside one:

        plan = await scheduler.plan(request)                       # a step of its own; no candidates: no valid host
        async with db.transaction() as tx:                         # the next step's transaction
            taken = await claim_first(tx, plan.candidates, consumer)
            ...                                                    # whatever the claim is for
        if taken is None:                                          # lost them all: the operation goes back a step
            plan = await scheduler.plan(request, lost=plan.uuids)

    What nobody will claim is planned by `rehearse`.
    """

    def __init__(self, db: Database, config: SchedulerConfig | None = None, down_time: float = DOWN_TIME) -> None:
        """Raises ValueError if a filter or weigher of the configuration is none."""
        self._db = db
        self._down_time = down_time
        self._config = config or SchedulerConfig()
        plugins.check(plugins.FILTERS, self._config.filters)
        plugins.check(plugins.WEIGHERS, self._config.weights)
        self._feed: Feed | None = None
        self._planner: Planner | None = None
        self._looking = asyncio.Lock()
        self._looked_at = -math.inf  # when the last look at the database began
        self._reload_due = math.inf
        self._reloading: asyncio.Task[None] | None = None

    async def warm(self) -> None:
        """Load numpy beside the event loop and read all hosts, so that the first plan is as quick as any."""
        await asyncio.to_thread(_import_columns)
        await self._look(time.monotonic())

    async def plan(self, request: Request, *, lost: Sequence[str] = ()) -> Plan:
        """The best hosts for a request. `lost`: uuids of the candidates that refused it."""
        feed, planner = self._parts()
        hosts = feed.hosts
        asked = time.monotonic()
        if lost:
            self._give_up(feed, lost)
        await self._look(asked if lost else asked - self._config.refresh_every)
        hosts.foresight.expire(asked)
        hosts.loads.expire(asked)
        plan = await _in_turns(planner.pieces(request, hosts), nullcontext)
        if not plan.candidates:
            # Neither a change not yet seen nor a proposal that may come to nothing is a reason to refuse.
            await self._look(asked)
            plan = await _in_turns(planner.pieces(request, hosts), hosts.foresight.suspended)
        self._foresee(hosts, plan)
        return plan

    async def rehearse(self, following: Next) -> list[Plan]:
        """Plans for several servers that nobody will claim; see `rehearsal`."""
        planner, hosts = await self.look()
        from kilonova.scheduler.rehearsal import rehearse

        return await rehearse(planner, hosts, following)

    async def objections(self, request: Request) -> list[str]:
        """Why a server cannot stay on the host that the request names, with the image that it names."""
        planner, hosts = await self.look()
        return planner.objections(request, hosts)

    async def look(self) -> tuple[Planner, Hosts]:
        """Who plans, and the hosts as the database has them now, for whoever wants to know what would be."""
        if self._planner is None:
            await asyncio.to_thread(_import_columns)
        await self._look(time.monotonic())
        feed, planner = self._parts()
        feed.hosts.loads.expire(time.monotonic())
        return planner, feed.hosts

    def built(self, host: str, succeeded: bool) -> None:
        """Remember whether a host could build a server, so that hosts which could not come last."""
        self._parts()[0].hosts.loads.built(host, succeeded)

    def unheard(self, host: str) -> None:
        """Remember that a host did not answer, until its silence shows in the database, or it builds a server."""
        self._parts()[0].hosts.loads.unheard[host] = time.monotonic() + self._down_time

    async def close(self) -> None:
        if self._reloading is not None:
            self._reloading.cancel()
            await asyncio.gather(self._reloading, return_exceptions=True)

    def _parts(self) -> tuple[Feed, Planner]:
        if self._feed is None or self._planner is None:
            from kilonova.scheduler.feed import Feed
            from kilonova.scheduler.plan import Planner

            self._planner = Planner(self._config)
            self._feed = Feed(self._db, self._config, self._down_time, self._planner.reads)
        return self._feed, self._planner

    def _foresee(self, hosts: Hosts, plan: Plan) -> None:
        """The best host will most likely be the one that is claimed."""
        for best in plan.candidates[:1]:
            hosts.foresee(best.uuid, best.allocations, time.monotonic() + self._config.foresight)

    def _give_up(self, feed: Feed, lost: Sequence[str]) -> None:
        """Forget what the lost plan foresaw, and read its hosts anew."""
        feed.hosts.give_up(lost[0])
        feed.doubt(lost)

    async def _look(self, not_before: float) -> None:
        """Have the snapshot no older than that. One look at the database serves everyone who waits for it."""
        if self._looked_at >= not_before:
            return
        feed, _ = self._parts()
        async with self._looking:
            if self._looked_at >= not_before:
                return
            began = time.monotonic()
            await feed.refresh()
            if self._looked_at < 0:
                self._schedule_reload(began)
            self._looked_at = began
        if began >= self._reload_due:
            self._reload_due = math.inf
            self._reloading = asyncio.create_task(self._reload(feed))

    async def _reload(self, feed: Feed) -> None:
        began = time.monotonic()
        try:
            await feed.reload()
        except Exception:
            log.exception("the scheduler could not reload its hosts; it goes on with changes alone")
        self._schedule_reload(began)

    def _schedule_reload(self, began: float) -> None:
        """A full load began then; the next must not take more than a hundredth of the time."""
        now = time.monotonic()
        self._reload_due = now + max(self._config.reload_every, 100 * (now - began))


async def _in_turns(pieces: Pieces[Plan], within: Callable[[], AbstractContextManager[None]]) -> Plan:
    """Others have their turn between the pieces of a plan; `within` holds for each piece, and not between them."""
    while True:
        with within():
            try:
                next(pieces)
            except StopIteration as end:
                plan: Plan = end.value
                return plan
        await asyncio.sleep(0)


def _import_columns() -> None:
    import kilonova.scheduler.feed
    import kilonova.scheduler.plan  # noqa: F401
