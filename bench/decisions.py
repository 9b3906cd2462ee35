"""What a decision costs, by number and kind of hosts, and how many claims a second: `python -m bench.decisions`.

Decisions are made on a snapshot that is filled in memory, each followed by a change of one host's use, as a claim would
cause. Claims are made in a SQLite file, in a PostgreSQL of the bench's own, which does not wait for the disk, and in an
empty database, if `--database` names one.
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
from kilonova.placement import Consumer, Inventory, ProviderFacts, sync, try_claim
from kilonova.placement.candidates.model import Group
from kilonova.placement.facts import SHARES
from kilonova.placement.providers import Amounts
from kilonova.scheduler import Request, SchedulerConfig
from kilonova.scheduler.plan import Planner
from kilonova.scheduler.snapshot import HostFacts, Hosts, Marks
from kilonova.scheduler.trees import MemberFacts
from kilonova.store import Database, open_database, upgrade

NUMBERS = (1_000, 10_000, 100_000)
GOALS = {1_000: 0.2, 10_000: 0.5, 100_000: 2.0}  # milliseconds
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
ONE_CELL = Request(resources={"DISK_GB": 20}, groups={"1": Group(resources={"VCPU": 2, "MEMORY_MB": 4096})})
HUGE = Request(resources={"VCPU": 2, "MEMORY_MB": 4_000_000})
HOSTS_OF_A_POOL = 500


class Cost(NamedTuple):
    """Milliseconds of a decision."""

    least: float
    median: float


# Hosts


def plain(number: int) -> HostFacts:
    used = number % 60
    return HostFacts(
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
            "VCPU": Amounts(64, 0, 1, 64, 1, 4.0),
            "MEMORY_MB": Amounts(262144, 512, 1, 262144, 1, 1.0),
            "DISK_GB": Amounts(4000, 0, 1, 4000, 1, 1.0),
        },
        used={name: amount * used for name, amount in SIZE.items()},
        traits=TRAITS,
        marks=Marks(1, 1, 1),
    )


def numa(number: int) -> HostFacts:
    """Two cells with processors and memory; the disk is the host's own."""
    host = plain(number)
    cells = tuple(
        MemberFacts(
            10_000_000 + 2 * number + which,
            f"{number:031x}-{which}",
            host.uuid,
            host.uuid,
            {"VCPU": Amounts(32, 0, 1, 32, 1, 4.0), "MEMORY_MB": Amounts(131072, 0, 1, 131072, 1, 1.0)},
            {name: SIZE[name] * (number % 30) for name in ("VCPU", "MEMORY_MB")},
            frozenset({"HW_NUMA_ROOT"}),
            frozenset(),
            Marks(1, 1, 1),
        )
        for which in (0, 1)
    )
    host.inventory = {"DISK_GB": host.inventory["DISK_GB"]}
    host.children = cells
    return host


def pooled(number: int) -> HostFacts:
    """Without disk of its own, but with a pool that some hundred hosts share."""
    host = plain(number)
    host.inventory = {name: amounts for name, amounts in host.inventory.items() if name != "DISK_GB"}
    host.provider_aggregates = frozenset({f"pool-{number // HOSTS_OF_A_POOL}"})
    return host


def filled(kind: Callable[[int], HostFacts], number: int) -> tuple[Hosts, float]:
    """The snapshot, and the seconds of CPU that it took to fill it."""
    facts = [kind(n) for n in range(number)]
    hosts = Hosts()
    began = time.process_time()
    if kind is pooled:
        for n in range(-(-number // HOSTS_OF_A_POOL)):
            hosts.put_sharing(_pool(n))
    for one in facts:
        hosts.put(one)
    return hosts, time.process_time() - began


def _pool(number: int) -> MemberFacts:
    uuid = f"pool-{number}"
    inventory = {"DISK_GB": Amounts(2_000_000, 0, 1, 2_000_000, 1, 1.0)}
    return MemberFacts(
        20_000_000 + number, uuid, None, uuid, inventory, {}, frozenset({SHARES}), frozenset({uuid}), Marks(1, 1, 1)
    )


# Decisions


def decide(request: Request, hosts: Hosts, rounds: int) -> Cost:
    planner = Planner(SchedulerConfig())
    taken = []
    for n in range(rounds + 2):
        began = time.perf_counter()
        planner.plan(request, hosts)
        taken.append((time.perf_counter() - began) * 1000)
        hosts.use(1 + n % len(hosts), SIZE, Marks(n + 2, 1, n + 2))
    return Cost(min(taken), statistics.median(taken[2:]))


def decisions(table: Table, number: int) -> None:
    rounds = max(50, 300_000 // number)
    for kind, asked in ((plain, (BOOT, PINNED, HUGE, ONE_CELL)), (numa, (BOOT, ONE_CELL)), (pooled, (BOOT,))):
        hosts, fill = filled(kind, number)
        for request in asked:
            name = {id(BOOT): "boot", id(PINNED): "pinned", id(HUGE): "refused", id(ONE_CELL): "in one cell"}[
                id(request)
            ]
            cost = decide(request, hosts, rounds)
            goal = f"{GOALS[number]:g}" if kind is plain and request is BOOT and number in GOALS else ""
            figures = (f"{cost.least:.3f}", f"{cost.median:.3f}", goal, f"{fill:.2f}" if request is BOOT else "")
            table.add_row(f"{number:,}", kind.__name__, name, *figures)


# Claims


async def claims(url: str, *, count: int = 2000, at_once: int = 16, providers: int = 64, several: int = 1) -> float:
    """Claims a second, each in a transaction of its own, on so many providers, from `several` at once."""
    await upgrade(url)
    db = await open_database(url)
    try:
        uuids = await _providers(db, providers)
        asked = iter(range(count))
        began = time.perf_counter()
        await asyncio.gather(*(_lane(db, uuids, asked, several) for _ in range(at_once)))
        return count / (time.perf_counter() - began)
    finally:
        await db.close()


async def _providers(db: Database, number: int) -> list[str]:
    inventory = {name: Inventory(1_000_000) for name in SIZE}
    mark = new_id()
    facts = [ProviderFacts(new_id(), f"host-{mark}-{n}", inventory) for n in range(number)]
    async with db.transaction() as tx:
        await sync(tx, facts)
    return [one.uuid for one in facts]


async def _lane(db: Database, uuids: list[str], asked: Iterator[int], several: int) -> None:
    for number in asked:
        chosen = [uuids[(number * several + n) % len(uuids)] for n in range(several)]
        async with db.transaction() as tx:
            await try_claim(tx, Consumer(new_id(), "project", "user"), dict.fromkeys(chosen, SIZE))


@contextmanager
def postgresql() -> Iterator[str]:
    """An empty database of a server that is there for the time of the block."""
    server = PostgresServer(sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))[-1].parent)
    try:
        server.initialise()
        server.start()
        yield server.url(server.create())
    finally:
        server.remove()


def rates(table: Table, url: str, count: int, at_once: int) -> None:
    for several in (1, 2):
        rate = asyncio.run(claims(url, count=count, at_once=at_once, several=several))
        table.add_row(url.partition(":")[0], str(several), str(at_once), f"{rate:.0f}")


@click.command()
@click.option("--hosts", default=",".join(map(str, NUMBERS)), show_default=True)
@click.option("--claims", "count", default=2000, show_default=True, help="How many claims; 0: none.")
@click.option("--at-once", default=16, show_default=True)
@click.option("--database", default=None, help="URL of an empty database to claim in, besides the two.")
def main(hosts: str, count: int, at_once: int, database: str | None) -> None:
    """Measure decisions and claims."""
    decided = Table("Hosts", "Kind", "Request", "Least ms", "Median ms", "Goal ms", "Filled s", title="Decisions")
    for number in hosts.split(",") if hosts else ():
        decisions(decided, int(number))
    if hosts:
        Console(width=100).print(decided)
    if not count:
        return
    claimed = Table("Database", "Providers of a claim", "At once", "Claims a second", title="Claims")
    with tempfile.TemporaryDirectory(prefix="kilonova-bench-") as scratch:
        rates(claimed, f"sqlite:///{Path(scratch) / 'bench.db'}", count, at_once)
    with postgresql() as url:
        rates(claimed, url, count, at_once)
    if database:
        rates(claimed, database, count, at_once)
    Console(width=100).print(claimed)


if __name__ == "__main__":
    main()
