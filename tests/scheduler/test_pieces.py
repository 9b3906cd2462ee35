"""A plan that has to search many trees is made in pieces: others run between them, and what they change counts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kilonova.placement.candidates.model import Group
from kilonova.scheduler import Request, Scheduler, SchedulerConfig
from kilonova.scheduler import plan as planning
from kilonova.scheduler.candidates import Plan
from kilonova.scheduler.plan import Pieces, Planner
from kilonova.scheduler.snapshot import HostFacts, Hosts
from tests.scheduler.support import add_hosts, cell, numa_host, shaped, snapshot
from tests.support import run
from tests.support.databases import opened

ONE_CELL = Request(resources={}, groups={"1": Group(resources={"VCPU": 2, "MEMORY_MB": 1024})})


@pytest.fixture(autouse=True)
def _short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "_TURN", 0.0)


def torn(number: int, **changes: Any) -> HostFacts:
    """A host with processors left in one cell and memory in the other."""
    cells = (cell(100 * number, number, used={"VCPU": 4}), cell(100 * number + 1, number, used={"MEMORY_MB": 4096}))
    return numa_host(number, *cells, **changes)


def end(pieces: Pieces[Plan]) -> Plan:
    while True:
        try:
            next(pieces)
        except StopIteration as stop:
            plan: Plan = stop.value
            return plan


def begun(hosts: Hosts, after: int) -> Pieces[Plan]:
    """So many pieces of a plan that wants every host."""
    pieces = Planner(SchedulerConfig(alternates=100, jitter=0.0)).pieces(ONE_CELL, hosts)
    for _ in range(after):
        next(pieces)
    return pieces


def test_pieces_come_to_the_same_as_the_whole() -> None:
    hosts = snapshot(*(torn(n) for n in range(1, 40)), numa_host(40, cell(4000, 40)))
    outcome = end(begun(hosts, 10))
    assert [candidate.host for candidate in outcome.candidates] == ["h40"]
    result = outcome.diagnosis.filters[-1]
    assert (result.filter, result.rejected, result.left) == ("arrangement", 39, 1)
    assert outcome.diagnosis.filters == Planner(SchedulerConfig()).plan(ONE_CELL, hosts).diagnosis.filters


@pytest.mark.parametrize("after", [1, 3, 5])
def test_a_host_that_went_meanwhile_is_not_proposed(after: int) -> None:
    hosts = snapshot(*(numa_host(n, cell(100 * n, n)) for n in range(1, 6)))
    pieces = begun(hosts, after)
    hosts.drop(2)
    hosts.put(numa_host(9, cell(900, 9)))  # comes into the row that has become free
    assert {candidate.host for candidate in end(pieces).candidates} == {"h1", "h3", "h4", "h5"}


@pytest.mark.parametrize("after", [1, 3, 5])
def test_a_host_that_changed_meanwhile_is_not_proposed(after: int) -> None:
    """The filters knew another host, and the claim would be told that they knew this one."""
    hosts = snapshot(*(numa_host(n, cell(100 * n, n)) for n in range(1, 6)))
    pieces = begun(hosts, after)
    hosts.put(numa_host(2, cell(200, 2), disabled=True, marks=newer_marks(hosts)))
    assert {candidate.host for candidate in end(pieces).candidates} == {"h1", "h3", "h4", "h5"}


def newer_marks(hosts: Hosts) -> Any:
    marks = hosts.marks(2)
    assert marks is not None
    return marks._replace(change=marks.change + 10, facts=marks.facts + 10)


def test_others_run_while_a_refusal_is_worked_out(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with opened(sqlite_url) as db:
            await add_hosts(db, *(shaped(f"h{n}", 1, 1) for n in range(50)))
            scheduler = Scheduler(db)
            await scheduler.plan(Request(resources={"VCPU": 1}))
            _, hosts = await scheduler.look()
            pair = {str(n): Group(resources={"VCPU": 1, "MEMORY_MB": 3000}) for n in range(3)}
            searching = asyncio.create_task(scheduler.plan(Request(resources={}, groups=pair)))
            turns = 0
            while not searching.done():
                turns += 1
                assert sum(hosts.stock("VCPU").foreseen) == 1, "proposals of others count between the pieces"
                await asyncio.sleep(0)
            assert not searching.result().candidates
            assert turns > 100

    run(scenario())
