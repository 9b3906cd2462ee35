"""A rehearsal lets others have their turns, and they see nothing of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from kilonova.scheduler import Candidate, Request, SchedulerConfig, rehearsal
from kilonova.scheduler.plan import Planner
from kilonova.scheduler.snapshot import Hosts
from tests.scheduler.support import TINY, host, numa_host, snapshot
from tests.support import run


def free(hosts: Hosts) -> list[list[float]]:
    return [hosts.stock(name).free[: len(hosts)].tolist() for name in TINY]


def many(number: int) -> Any:
    def following(taken: Sequence[Candidate]) -> Request | None:
        return Request(resources=TINY) if len(taken) < number else None

    return following


def test_others_have_their_turns_and_see_the_hosts_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehearsal, "_MOMENT", 0.0)
    hosts = snapshot(host(1), host(2), numa_host(3))
    before = free(hosts)
    seen: list[list[list[float]]] = []

    async def look_on() -> None:
        while True:
            seen.append(free(hosts))
            await asyncio.sleep(0)

    async def scenario() -> None:
        onlooker = asyncio.create_task(look_on())
        plans = await rehearsal.rehearse(Planner(SchedulerConfig()), hosts, many(6))
        onlooker.cancel()
        assert [bool(plan.candidates) for plan in plans] == [True] * 6

    run(scenario())
    assert len(seen) >= 5
    assert all(picture == before for picture in seen)
    assert free(hosts) == before


def test_what_others_claim_meanwhile_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehearsal, "_MOMENT", 0.0)
    hosts = snapshot(host(1))
    most = int(min(hosts.stock(name).free[0] // amount for name, amount in TINY.items()))

    async def claim() -> None:
        hosts.count({hosts.uuids[0]: TINY}, 1)

    async def scenario() -> None:
        other = asyncio.create_task(claim())
        plans = await rehearsal.rehearse(Planner(SchedulerConfig()), hosts, many(most + 1))
        await other
        assert sum(bool(plan.candidates) for plan in plans) == most - 1

    run(scenario())
