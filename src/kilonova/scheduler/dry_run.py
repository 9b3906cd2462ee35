"""Dry runs: plans for several servers, each as if the servers before it were on their best host. Nothing is claimed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from kilonova.scheduler.candidates import Candidate, Plan
from kilonova.scheduler.request import Request

if TYPE_CHECKING:
    from kilonova.scheduler.plan import Planner
    from kilonova.scheduler.snapshot import Hosts

NextRequest = Callable[[Sequence[Candidate]], Request | None]
"""Returns the request that follows these placed candidates; None at the end."""

# After this time the event loop may run other tasks.
_SLICE_SECONDS = 0.02


async def plan_dry_run(planner: Planner, hosts: Hosts, next_request: NextRequest) -> list[Plan]:
    """Ends with the first plan without candidates. Proposals do not count, because their claims may fail.

    Other tasks run in between; their claims count. The allocations of the dry run are removed from the columns before
    each of these pauses, so that other tasks do not see them.
    """
    plans: list[Plan] = []
    taken: list[Candidate] = []
    while _plan_slice(planner, hosts, next_request, plans, taken):
        await asyncio.sleep(0)
    return plans


def _plan_slice(
    planner: Planner, hosts: Hosts, next_request: NextRequest, plans: list[Plan], taken: list[Candidate]
) -> bool:
    """Plan for one time slice and restore the columns; return whether there is more to do."""
    until = time.perf_counter() + _SLICE_SECONDS
    with hosts.proposals.suspended():
        for candidate in taken:
            hosts.count_allocations(candidate.allocations, 1)
        try:
            while (request := next_request(taken)) is not None:
                plan = planner.plan(request, hosts)
                plans.append(plan)
                if not plan.candidates:
                    return False
                taken.append(plan.candidates[0])
                hosts.count_allocations(plan.candidates[0].allocations, 1)
                if time.perf_counter() >= until:
                    return True
            return False
        finally:
            for candidate in taken:
                hosts.count_allocations(candidate.allocations, -1)
