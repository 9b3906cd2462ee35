"""Plans that search many provider trees run in time slices; changes between the slices count."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kilonova.placement.candidates.model import RequestGroup
from kilonova.scheduler import Request, Scheduler, SchedulerConfig
from kilonova.scheduler import plan as planning
from kilonova.scheduler.candidates import Plan
from kilonova.scheduler.plan import Planner, Sliced
from kilonova.scheduler.snapshot import Hosts, HostState
from tests.scheduler.support import add_hosts, cell, nested_host_facts, numa_host, snapshot
from tests.support import run
from tests.support.databases import opened

ONE_CELL = Request(resources={}, groups={"1": RequestGroup(resources={"VCPU": 2, "MEMORY_MB": 1024})})


@pytest.fixture(autouse=True)
def _empty_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "_SLICE_SECONDS", 0.0)


def split_host(number: int, **changes: Any) -> HostState:
    """A host with free VCPU in one cell and free memory in the other."""
    cells = (cell(100 * number, number, used={"VCPU": 4}), cell(100 * number + 1, number, used={"MEMORY_MB": 4096}))
    return numa_host(number, *cells, **changes)


def finish(slices: Sliced[Plan]) -> Plan:
    while True:
        try:
            next(slices)
        except StopIteration as stop:
            plan: Plan = stop.value
            return plan


def start(hosts: Hosts, after: int) -> Sliced[Plan]:
    """A plan for up to 100 candidates, after this many slices."""
    slices = Planner(SchedulerConfig(alternates=100, jitter=0.0)).plan_in_slices(ONE_CELL, hosts)
    for _ in range(after):
        next(slices)
    return slices


def test_sliced_plan_equals_plan_in_one_go() -> None:
    hosts = snapshot(*(split_host(n) for n in range(1, 40)), numa_host(40, cell(4000, 40)))
    outcome = finish(start(hosts, 10))
    assert [candidate.host for candidate in outcome.candidates] == ["h40"]
    result = outcome.diagnosis.filters[-1]
    assert (result.filter, result.rejected, result.left) == ("arrangement", 39, 1)
    assert outcome.diagnosis.filters == Planner(SchedulerConfig()).plan(ONE_CELL, hosts).diagnosis.filters


@pytest.mark.parametrize("after", [1, 3, 5])
def test_host_removed_between_slices_is_not_proposed(after: int) -> None:
    hosts = snapshot(*(numa_host(n, cell(100 * n, n)) for n in range(1, 6)))
    slices = start(hosts, after)
    hosts.drop(2)
    hosts.put(numa_host(9, cell(900, 9)))  # reuses the row
    assert {candidate.host for candidate in finish(slices).candidates} == {"h1", "h3", "h4", "h5"}


@pytest.mark.parametrize("after", [1, 3, 5])
def test_host_changed_between_slices_is_not_proposed(after: int) -> None:
    """The filters have not seen the change, but the claim would take the plan as based on it."""
    hosts = snapshot(*(numa_host(n, cell(100 * n, n)) for n in range(1, 6)))
    slices = start(hosts, after)
    hosts.put(numa_host(2, cell(200, 2), disabled=True, version=newer_version(hosts)))
    assert {candidate.host for candidate in finish(slices).candidates} == {"h1", "h3", "h4", "h5"}


def newer_version(hosts: Hosts) -> Any:
    version = hosts.version(2)
    assert version is not None
    return version._replace(change=version.change + 10, facts=version.facts + 10)


def test_other_tasks_run_while_failure_is_explained(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with opened(sqlite_url) as db:
            await add_hosts(db, *(nested_host_facts(f"h{n}", 1, 1) for n in range(50)))
            scheduler = Scheduler(db)
            await scheduler.plan(Request(resources={"VCPU": 1}))
            _, hosts = await scheduler.current_hosts()
            pair = {str(n): RequestGroup(resources={"VCPU": 1, "MEMORY_MB": 3000}) for n in range(3)}
            searching = asyncio.create_task(scheduler.plan(Request(resources={}, groups=pair)))
            iterations = 0
            while not searching.done():
                iterations += 1
                assert sum(hosts.inventory("VCPU").proposed) == 1, "proposals of other tasks count between the slices"
                await asyncio.sleep(0)
            assert not searching.result().candidates
            assert iterations > 100

    run(scenario())
