"""Plans that nobody will claim: for several servers, each as if those before it had got the best host of theirs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from kilonova.scheduler.candidates import Candidate, Plan
from kilonova.scheduler.request import Request

if TYPE_CHECKING:
    from kilonova.scheduler.plan import Planner
    from kilonova.scheduler.snapshot import Hosts

Next = Callable[[Sequence[Candidate]], Request | None]
"""What is asked after these were taken; None at the end."""


def rehearse(planner: Planner, hosts: Hosts, following: Next) -> list[Plan]:
    """Ends with the first plan that finds nobody. Proposals of others do not count: they may come to nothing."""
    plans: list[Plan] = []
    taken: list[Candidate] = []
    with hosts.foresight.suspended():
        try:
            while (request := following(taken)) is not None:
                plan = planner.plan(request, hosts)
                plans.append(plan)
                if not plan.candidates:
                    break
                taken.append(plan.candidates[0])
                hosts.count(plan.candidates[0].allocations, 1)
        finally:
            for candidate in taken:
                hosts.count(candidate.allocations, -1)
    return plans
