"""Concurrent claims: the stored allocations are exactly the granted ones, and never exceed the capacity."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from typing import Any

import orjson
import pytest

from kilonova.placement import Inventory, get_usages
from kilonova.store import Database
from tests.placement.concurrent_claims import CLASSES, run_attempts
from tests.placement.support import provider, write
from tests.support import run
from tests.support.databases import opened

CAPACITY = {"VCPU": 40, "MEMORY_MB": 47, "DISK_GB": 51}


async def prepare(db: Database) -> list[str]:
    facts = [provider(f"host-{n}", **{name: Inventory(total) for name, total in CAPACITY.items()}) for n in range(3)]
    await write(db, *facts)
    return [one.uuid for one in facts]


async def check(db: Database, providers: list[str], attempts: list[dict[str, Any]], releases: bool) -> None:
    held: dict[str, Counter[str]] = {uuid: Counter() for uuid in providers}
    for attempt in attempts:
        if attempt["granted"] and not attempt["release"]:
            held[attempt["provider"]].update(attempt["resources"])
    found = await get_usages(db, providers)
    assert found == {uuid: {name: held[uuid][name] for name in CLASSES} for uuid in providers}
    for uuid in providers:
        assert all(found[uuid][name] <= CAPACITY[name] for name in CLASSES)
    holders = {row["uuid"] for row in await db.fetch("SELECT uuid FROM consumers")}
    assert holders == {a["consumer"] for a in attempts if a["granted"] and not a["release"]}
    if not releases:
        # Without releases usage only grows, so refused claims do not fit now either.
        for attempt in attempts:
            if not attempt["granted"]:
                used = found[attempt["provider"]]
                assert any(used[name] + n > CAPACITY[name] for name, n in attempt["resources"].items())


@pytest.mark.parametrize("releases", [False, True])
def test_concurrent_claims_on_nearly_full_hosts(database, releases):
    async def scenario():
        async with database() as db:
            providers = await prepare(db)
            attempts = await run_attempts(db, providers, seed=1, number=300, releases=releases)
            assert 0 < sum(attempt["granted"] for attempt in attempts) < 300
            await check(db, providers, attempts, releases)

    run(scenario())


def test_concurrent_claims_of_two_processes(postgresql_url):
    """There is room for one process but not for both, so each gets some claims, however fast it is."""

    async def scenario():
        async with opened(postgresql_url) as db:
            providers = await prepare(db)
            job = {"url": postgresql_url, "providers": providers, "number": 50, "releases": False}
            ready = asyncio.Barrier(2)
            outputs = await asyncio.gather(*(second_process({**job, "seed": seed}, ready) for seed in (1, 2)))
            assert all(any(attempt["granted"] for attempt in output) for output in outputs)
            attempts = [attempt for output in outputs for attempt in output]
            assert not all(attempt["granted"] for attempt in attempts)
            await check(db, providers, attempts, releases=False)

    run(scenario())


async def second_process(job: dict[str, Any], ready: asyncio.Barrier) -> list[dict[str, Any]]:
    """Start the process; it waits for the barrier."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.placement.concurrent_claims",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(orjson.dumps(job) + b"\n")
    assert await process.stdout.readline() == b"ready\n"
    await ready.wait()
    output, _ = await process.communicate(b"go\n")
    assert process.returncode == 0
    attempts: list[dict[str, Any]] = orjson.loads(output)
    return attempts
