"""Concurrent boots by one or more schedulers fill all kinds of hosts exactly."""

from __future__ import annotations

import asyncio
import random
import shutil
import sys
import tempfile
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from kilonova.hosts.messages import HostFacts
from kilonova.placement import Consumer, get_allocations
from kilonova.placement.candidates.model import InventoryUsage, Provider
from kilonova.placement.candidates.search import allocation_requests
from kilonova.scheduler import Scheduler
from kilonova.store import Database
from tests.scheduler.parallel import ConcurrentBoots, Record, ServerRequest, repeated_claims
from tests.scheduler.support import NoValidHost, add_hosts, host_facts, inventory, nested_host_facts, place
from tests.support import run
from tests.support.databases import PostgresServer, opened, sqlite_template

HYPOTHESIS_SETTINGS = {
    "deadline": None,
    "database": None,
    "suppress_health_check": list(HealthCheck),
    "derandomize": True,
    "phases": (Phase.generate,),  # the outcome depends on timing, so shrinking does not work
}


class Cloud(msgspec.Struct):
    hosts: list[HostFacts]
    shapes: list[dict[str, Any]]
    seed: int

    def servers(self, number: int, *, releases: bool = False) -> list[ServerRequest]:
        dice = random.Random(self.seed)
        return [
            ServerRequest(f"server-{n}", **dice.choice(self.shapes), release=releases and dice.random() < 0.3)
            for n in range(number)
        ]


@st.composite
def clouds(draw: st.DrawFn) -> Cloud:
    """Hosts of all kinds with capacity for about half of the servers, and the resources of the servers."""
    hosts = []
    pool = draw(st.integers(20, 60))
    for number in range(draw(st.integers(3, 6))):
        kind = draw(st.sampled_from(["plain", "numa", "pooled", "pooled"]))
        if kind == "plain":
            inventories = {name: inventory(draw(st.integers(10, 40))) for name in ("VCPU", "MEMORY_MB", "DISK_GB")}
            hosts.append(msgspec.structs.replace(host_facts(f"h{number}"), inventory=inventories))
        else:
            cells = draw(st.lists(st.integers(3, 16), min_size=2, max_size=3))
            disk = {"pool": pool} if kind == "pooled" else {"disk": draw(st.integers(5, 40))}
            hosts.append(nested_host_facts(f"h{number}", *cells, memory=draw(st.integers(5, 16)), **disk))
    return Cloud(hosts, draw(st.lists(shapes(), min_size=2, max_size=4)), draw(st.integers(0, 1000)))


@st.composite
def shapes(draw: st.DrawFn) -> dict[str, Any]:
    small = st.integers(1, 3)
    disk = {"DISK_GB": draw(small)} if draw(st.booleans()) else {}
    processors = {"VCPU": draw(small), "MEMORY_MB": draw(small)}
    match draw(st.sampled_from(["spread", "spread", "one cell", "two cells"])):
        case "spread":
            return {"resources": {**processors, **disk}}
        case "one cell":
            return {"resources": disk, "groups": {"1": processors}}
        case _:
            return {"resources": disk, "groups": {"1": processors, "2": {"VCPU": 1}}, "isolate": True}


# Invariants after the run


async def check(db: Database, cloud: Cloud, record: Record) -> None:
    await check_sums(db, record)
    assert repeated_claims(record) == []
    assert not [error for error in record.errors if "faster" not in error], "deadlocked, or worse"
    providers = await read_providers(db)
    for server in record.servers:
        if server.allocations is None:
            # Usage has only grown, so a refused server cannot fit now.
            assert not fits(server, providers), server.sentence


async def check_sums(db: Database, record: Record) -> None:
    placed = {one.consumer: one.allocations for one in record.servers if one.allocations and not one.release}
    assert await get_allocations(db, [one.consumer for one in record.servers]) == placed, (
        "partial or missing allocations"
    )
    assert {row["uuid"] for row in await db.fetch("SELECT uuid FROM consumers")} == set(placed)
    sums: dict[str, Counter[str]] = {}
    for allocations in placed.values():
        for uuid, amounts in allocations.items():
            sums.setdefault(uuid, Counter()).update(amounts)
    for provider in await read_providers(db):
        for name, usage in provider.inventories.items():
            assert usage.used == sums.get(provider.uuid, Counter())[name] <= usage.capacity
    for server in record.servers:
        if server.allocations is not None:
            assert allocated(server) == requested(server), "allocations differ from the request"


def allocated(server: ServerRequest) -> Counter[str]:
    return sum((Counter(amounts) for amounts in (server.allocations or {}).values()), Counter())


def requested(server: ServerRequest) -> Counter[str]:
    return sum(map(Counter, server.groups.values()), Counter(server.resources))


async def read_providers(db: Database) -> list[Provider]:
    """All providers, read from the tables."""
    inventories: dict[int, dict[str, InventoryUsage]] = {}
    used = "(SELECT COALESCE(SUM(used), 0) FROM allocations a WHERE a.provider_id = i.provider_id"
    used += " AND a.resource_class = i.resource_class)"
    for row in await db.fetch(f"SELECT i.*, CAST({used} AS BIGINT) AS used FROM inventories i"):
        inventories.setdefault(row["provider_id"], {})[row["resource_class"]] = InventoryUsage(
            row["total"], row["used"]
        )
    rows = await db.fetch("SELECT * FROM resource_providers ORDER BY id")
    uuids = {row["id"]: row["uuid"] for row in rows}
    traits = await db.fetch("SELECT * FROM provider_traits")
    aggregates = await db.fetch("SELECT * FROM provider_aggregates")
    return [
        Provider(
            row["uuid"],
            uuids.get(row["parent_id"]),
            uuids[row["root_id"]],
            inventories.get(row["id"], {}),
            frozenset(one["trait"] for one in traits if one["provider_id"] == row["id"]),
            frozenset(one["aggregate_uuid"] for one in aggregates if one["provider_id"] == row["id"]),
        )
        for row in rows
    ]


def fits(server: ServerRequest, providers: list[Provider]) -> bool:
    """Whether any host could take the server."""
    sharing = [one for one in providers if "MISC_SHARES_VIA_AGGREGATE" in one.traits]
    roots = {one.root for one in providers} - {one.root for one in sharing}
    trees = ([one for one in providers if one.root == root] for root in roots)
    return any(next(allocation_requests(server.request.resource_request, tree, sharing), None) for tree in trees)


# Tests


@settings(max_examples=10, **HYPOTHESIS_SETTINGS)
@given(clouds())
def test_one_process_fills_all_kinds_of_hosts_exactly(cloud):
    async def scenario(url):
        async with opened(url) as db:
            await add_hosts(db, *cloud.hosts)
            await check(db, cloud, await ConcurrentBoots(db, at_once=24).run(cloud.servers(100)))

    on_sqlite(scenario)


@settings(max_examples=6, **HYPOTHESIS_SETTINGS)
@given(clouds())
def test_released_resources_are_used_again(cloud):
    async def scenario(url):
        async with opened(url) as db:
            await add_hosts(db, *cloud.hosts)
            record = await ConcurrentBoots(db, at_once=24).run(cloud.servers(60, releases=True))
            await check_sums(db, record)
            scheduler = Scheduler(db)
            for server in (one for one in record.servers if one.allocations is None):
                expected = fits(server, await read_providers(db))
                with nullcontext() if expected else pytest.raises(NoValidHost):
                    await place(scheduler, db, server.request, Consumer(server.consumer, "project", "user"))

    on_sqlite(scenario)


@pytest.fixture
def postgresql(postgresql_server: PostgresServer) -> PostgresServer:
    return postgresql_server


@settings(max_examples=4, **HYPOTHESIS_SETTINGS)
@given(cloud=clouds())
def test_two_processes_fill_all_kinds_of_hosts_exactly(postgresql, cloud):
    url = postgresql.url(postgresql.fresh())

    async def scenario():
        async with opened(url) as db:
            await add_hosts(db, *cloud.hosts)
            servers = cloud.servers(200)
            records = await asyncio.gather(*(run_in_process(url, servers[start::2]) for start in (0, 1)))
            both = Record(
                [server for record in records for server in record.servers],
                [entry for record in records for entry in record.refused_claims],
                [error for record in records for error in record.errors],
            )
            await check(db, cloud, both)

    run(scenario())


def on_sqlite(scenario: Any) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "kilonova.db"
        shutil.copy(sqlite_template(), path)
        run(scenario(f"sqlite://{path}"))


async def run_in_process(url: str, servers: list[ServerRequest]) -> Record:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.scheduler.parallel", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    job = {"url": url, "at_once": 16, "servers": servers}
    output, _ = await process.communicate(msgspec.json.encode(job))
    assert process.returncode == 0
    return msgspec.json.decode(output, type=Record)
