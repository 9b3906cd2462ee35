"""However many claim at once: what was granted is what is held, and it never exceeds what there is."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from typing import Any

import orjson
import pytest

from kilonova.placement import Inventory, usages
from kilonova.store import Database
from tests.placement.race import CLASSES, race
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
    found = await usages(db, providers)
    assert found == {uuid: {name: held[uuid][name] for name in CLASSES} for uuid in providers}
    for uuid in providers:
        assert all(found[uuid][name] <= CAPACITY[name] for name in CLASSES)
    holders = {row["uuid"] for row in await db.fetch("SELECT uuid FROM consumers")}
    assert holders == {a["consumer"] for a in attempts if a["granted"] and not a["release"]}
    if not releases:
        # Use only grew, so what was refused cannot fit now either.
        for attempt in attempts:
            if not attempt["granted"]:
                used = found[attempt["provider"]]
                assert any(used[name] + n > CAPACITY[name] for name, n in attempt["resources"].items())


@pytest.mark.parametrize("releases", [False, True])
def test_parallel_claims_on_nearly_full_hosts(database, releases):
    async def scenario():
        async with database() as db:
            providers = await prepare(db)
            attempts = await race(db, providers, seed=1, number=300, releases=releases)
            assert 0 < sum(attempt["granted"] for attempt in attempts) < 300
            await check(db, providers, attempts, releases)

    run(scenario())


def test_two_processes_claim_at_once(postgresql_url):
    """There is room for what either of them wants, and not for both: each gets something, however fast it is."""

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
    """It begins when all are ready."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.placement.race", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
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
