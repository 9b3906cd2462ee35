"""Plans that nobody will claim: for several servers, each as if those before it had got the best host of theirs."""

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

Next = Callable[[Sequence[Candidate]], Request | None]
"""What is asked after these were taken; None at the end."""

# Seconds after which others have their turn.
_MOMENT = 0.02


async def rehearse(planner: Planner, hosts: Hosts, following: Next) -> list[Plan]:
    """Ends with the first plan that finds nobody. Proposals of others do not count: they may come to nothing.

    Others have their turns in between, and what they claim meanwhile counts. They see the hosts as they are: what is
    only imagined here is taken back before each of their turns.
    """
    plans: list[Plan] = []
    taken: list[Candidate] = []
    while _plan_some(planner, hosts, following, plans, taken):
        await asyncio.sleep(0)
    return plans


def _plan_some(planner: Planner, hosts: Hosts, following: Next, plans: list[Plan], taken: list[Candidate]) -> bool:
    """Go on for a moment, and leave the hosts as they were; whether there is more to do."""
    until = time.perf_counter() + _MOMENT
    with hosts.foresight.suspended():
        for candidate in taken:
            hosts.count(candidate.allocations, 1)
        try:
            while (request := following(taken)) is not None:
                plan = planner.plan(request, hosts)
                plans.append(plan)
                if not plan.candidates:
                    return False
                taken.append(plan.candidates[0])
                hosts.count(plan.candidates[0].allocations, 1)
                if time.perf_counter() >= until:
                    return True
            return False
        finally:
            for candidate in taken:
                hosts.count(candidate.allocations, -1)
