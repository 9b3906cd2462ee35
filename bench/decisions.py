"""Measures scheduling decisions by number and kind of hosts, and claims per second: `python -m bench.decisions`.

Decisions use a snapshot in memory. After each decision the usage of one host changes, as after a claim. Claims use a
SQLite file, a temporary PostgreSQL server without fsync, and the empty database `--database`, if given.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import click
from rich.console import Console
from rich.table import Table
from tests.support.databases import PostgresServer

from kilonova.ids import new_id
from kilonova.placement import Consumer, HostProviders, Inventory, sync_providers, try_claim
from kilonova.placement.candidates.model import RequestGroup
from kilonova.placement.host_providers import SHARING_TRAIT
from kilonova.placement.reshape_plan import InventoryAmounts
from kilonova.scheduler import Request, SchedulerConfig
from kilonova.scheduler.plan import Planner
from kilonova.scheduler.provider_trees import ProviderState
from kilonova.scheduler.snapshot import Hosts, HostState, ProviderVersion
from kilonova.store import Database, open_database, upgrade

NUMBERS = (1_000, 10_000, 100_000)
GOALS_MS = {1_000: 0.2, 10_000: 0.5, 100_000: 2.0}
TRAITS = frozenset(f"CUSTOM_TRAIT_{number}" for number in range(20))
SIZE = {"VCPU": 2, "MEMORY_MB": 4096, "DISK_GB": 20}
BOOT = Request(resources=SIZE)
PINNED = Request(
    resources=SIZE,
    zone="az1",
    excluded_hosts=frozenset({"host-1"}),
    required_traits=frozenset({"CUSTOM_TRAIT_1"}),
    forbidden_traits=frozenset({"CUSTOM_TRAIT_99"}),
)
ONE_CELL = Request(resources={"DISK_GB": 20}, groups={"1": RequestGroup(resources={"VCPU": 2, "MEMORY_MB": 4096})})
HUGE = Request(resources={"VCPU": 2, "MEMORY_MB": 4_000_000})
HOSTS_PER_POOL = 500


class Cost(NamedTuple):
    """Milliseconds of a decision."""

    least: float
    median: float


# Hosts


def plain(number: int) -> HostState:
    used = number % 60
    return HostState(
        provider_id=number + 1,
        uuid=f"{number:032x}",
        service_id=number + 1,
        host=f"host-{number}",
        hypervisor_hostname=f"host-{number}",
        zone=f"az{number % 3}",
        disabled=number % 50 == 0,
        disabled_reason=None,
        forced_down=False,
        inventory={
            "VCPU": InventoryAmounts(64, 0, 1, 64, 1, 4.0),
            "MEMORY_MB": InventoryAmounts(262144, 512, 1, 262144, 1, 1.0),
            "DISK_GB": InventoryAmounts(4000, 0, 1, 4000, 1, 1.0),
        },
        used={name: amount * used for name, amount in SIZE.items()},
        traits=TRAITS,
        version=ProviderVersion(1, 1, 1),
    )


def numa(number: int) -> HostState:
    """A host with two NUMA cells; the disk is in the root provider."""
    host = plain(number)
    cells = tuple(
        ProviderState(
            10_000_000 + 2 * number + which,
            f"{number:031x}-{which}",
            host.uuid,
            host.uuid,
            {
                "VCPU": InventoryAmounts(32, 0, 1, 32, 1, 4.0),
                "MEMORY_MB": InventoryAmounts(131072, 0, 1, 131072, 1, 1.0),
            },
            {name: SIZE[name] * (number % 30) for name in ("VCPU", "MEMORY_MB")},
            frozenset({"HW_NUMA_ROOT"}),
            frozenset(),
            ProviderVersion(1, 1, 1),
        )
        for which in (0, 1)
    )
    host.inventory = {"DISK_GB": host.inventory["DISK_GB"]}
    host.children = cells
    return host


def pooled(number: int) -> HostState:
    """A host without disk, and with a sharing disk provider."""
    host = plain(number)
    host.inventory = {name: amounts for name, amounts in host.inventory.items() if name != "DISK_GB"}
    host.provider_aggregates = frozenset({f"pool-{number // HOSTS_PER_POOL}"})
    return host


def make_snapshot(kind: Callable[[int], HostState], number: int) -> tuple[Hosts, float]:
    """A snapshot of hosts of this kind, and the CPU seconds for filling it."""
    facts = [kind(n) for n in range(number)]
    hosts = Hosts()
    began = time.process_time()
    if kind is pooled:
        for n in range(-(-number // HOSTS_PER_POOL)):
            hosts.put_sharing_provider(_pool(n))
    for one in facts:
        hosts.put(one)
    return hosts, time.process_time() - began


def _pool(number: int) -> ProviderState:
    uuid = f"pool-{number}"
    inventory = {"DISK_GB": InventoryAmounts(2_000_000, 0, 1, 2_000_000, 1, 1.0)}
    return ProviderState(
        20_000_000 + number,
        uuid,
        None,
        uuid,
        inventory,
        {},
        frozenset({SHARING_TRAIT}),
        frozenset({uuid}),
        ProviderVersion(1, 1, 1),
    )


# Decisions


def measure_decision(request: Request, hosts: Hosts, rounds: int) -> Cost:
    planner = Planner(SchedulerConfig())
    taken = []
    for n in range(rounds + 2):
        began = time.perf_counter()
        planner.plan(request, hosts)
        taken.append((time.perf_counter() - began) * 1000)
        hosts.set_used(1 + n % len(hosts), SIZE, ProviderVersion(n + 2, 1, n + 2))
    return Cost(min(taken), statistics.median(taken[2:]))


def add_decisions(table: Table, number: int) -> None:
    rounds = max(50, 300_000 // number)
    for kind, requests in ((plain, (BOOT, PINNED, HUGE, ONE_CELL)), (numa, (BOOT, ONE_CELL)), (pooled, (BOOT,))):
        hosts, fill = make_snapshot(kind, number)
        for request in requests:
            name = {id(BOOT): "boot", id(PINNED): "pinned", id(HUGE): "refused", id(ONE_CELL): "in one cell"}[
                id(request)
            ]
            cost = measure_decision(request, hosts, rounds)
            goal = f"{GOALS_MS[number]:g}" if kind is plain and request is BOOT and number in GOALS_MS else ""
            figures = (f"{cost.least:.3f}", f"{cost.median:.3f}", goal, f"{fill:.2f}" if request is BOOT else "")
            table.add_row(f"{number:,}", kind.__name__, name, *figures)


# Claims


async def measure_claims(
    url: str, *, count: int = 2000, at_once: int = 16, providers: int = 64, several: int = 1
) -> float:
    """Claims per second, each in its own transaction and from `several` providers."""
    await upgrade(url)
    db = await open_database(url)
    try:
        uuids = await _providers(db, providers)
        numbers = iter(range(count))
        began = time.perf_counter()
        await asyncio.gather(*(_claim_in_turn(db, uuids, numbers, several) for _ in range(at_once)))
        return count / (time.perf_counter() - began)
    finally:
        await db.close()


async def _providers(db: Database, number: int) -> list[str]:
    inventory = {name: Inventory(1_000_000) for name in SIZE}
    prefix = new_id()
    facts = [HostProviders(new_id(), f"host-{prefix}-{n}", inventory) for n in range(number)]
    async with db.transaction() as tx:
        await sync_providers(tx, facts)
    return [one.uuid for one in facts]


async def _claim_in_turn(db: Database, uuids: list[str], numbers: Iterator[int], several: int) -> None:
    for number in numbers:
        chosen = [uuids[(number * several + n) % len(uuids)] for n in range(several)]
        async with db.transaction() as tx:
            await try_claim(tx, Consumer(new_id(), "project", "user"), dict.fromkeys(chosen, SIZE))


@contextmanager
def postgresql() -> Iterator[str]:
    """An empty database on a temporary server."""
    server = PostgresServer(sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))[-1].parent)
    try:
        server.initialise()
        server.start()
        yield server.url(server.create())
    finally:
        server.remove()


def add_claim_rates(table: Table, url: str, count: int, at_once: int) -> None:
    for several in (1, 2):
        rate = asyncio.run(measure_claims(url, count=count, at_once=at_once, several=several))
        table.add_row(url.partition(":")[0], str(several), str(at_once), f"{rate:.0f}")


@click.command()
@click.option("--hosts", default=",".join(map(str, NUMBERS)), show_default=True)
@click.option("--claims", "count", default=2000, show_default=True, help="How many claims; 0: none.")
@click.option("--at-once", default=16, show_default=True)
@click.option("--database", default=None, help="URL of a further empty database for claims.")
def main(hosts: str, count: int, at_once: int, database: str | None) -> None:
    """Measure decisions and claims."""
    decided = Table("Hosts", "Kind", "Request", "Least ms", "Median ms", "Goal ms", "Filled s", title="Decisions")
    for number in hosts.split(",") if hosts else ():
        add_decisions(decided, int(number))
    if hosts:
        Console(width=100).print(decided)
    if not count:
        return
    claimed = Table("Database", "Providers of a claim", "At once", "Claims a second", title="Claims")
    with tempfile.TemporaryDirectory(prefix="kilonova-bench-") as scratch:
        add_claim_rates(claimed, f"sqlite:///{Path(scratch) / 'bench.db'}", count, at_once)
    with postgresql() as url:
        add_claim_rates(claimed, url, count, at_once)
    if database:
        add_claim_rates(claimed, database, count, at_once)
    Console(width=100).print(claimed)


if __name__ == "__main__":
    main()
