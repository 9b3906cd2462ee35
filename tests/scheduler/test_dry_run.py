"""Dry runs let other tasks run, which do not see their allocations."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from kilonova.scheduler import Candidate, Request, SchedulerConfig, dry_run
from kilonova.scheduler.plan import Planner
from kilonova.scheduler.snapshot import Hosts
from tests.scheduler.support import TINY, host, numa_host, snapshot
from tests.support import run


def free(hosts: Hosts) -> list[list[float]]:
    return [hosts.inventory(name).free[: len(hosts)].tolist() for name in TINY]


def repeat_request(number: int) -> Any:
    def next_request(taken: Sequence[Candidate]) -> Request | None:
        return Request(resources=TINY) if len(taken) < number else None

    return next_request


def test_other_tasks_run_and_do_not_see_dry_run_allocations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dry_run, "_SLICE_SECONDS", 0.0)
    hosts = snapshot(host(1), host(2), numa_host(3))
    before = free(hosts)
    seen: list[list[list[float]]] = []

    async def observe() -> None:
        while True:
            seen.append(free(hosts))
            await asyncio.sleep(0)

    async def scenario() -> None:
        observer = asyncio.create_task(observe())
        plans = await dry_run.plan_dry_run(Planner(SchedulerConfig()), hosts, repeat_request(6))
        observer.cancel()
        assert [bool(plan.candidates) for plan in plans] == [True] * 6

    run(scenario())
    assert len(seen) >= 5
    assert all(free_amounts == before for free_amounts in seen)
    assert free(hosts) == before


def test_claims_of_other_tasks_count_in_dry_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dry_run, "_SLICE_SECONDS", 0.0)
    hosts = snapshot(host(1))
    most = int(min(hosts.inventory(name).free[0] // amount for name, amount in TINY.items()))

    async def claim() -> None:
        hosts.count_allocations({hosts.uuids[0]: TINY}, 1)

    async def scenario() -> None:
        other = asyncio.create_task(claim())
        plans = await dry_run.plan_dry_run(Planner(SchedulerConfig()), hosts, repeat_request(most + 1))
        await other
        assert sum(bool(plan.candidates) for plan in plans) == most - 1

    run(scenario())
