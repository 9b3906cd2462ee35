"""Measures `GET /allocation_candidates` by number of providers: `python -m bench.candidates`.

Every provider is a host with three resource classes, twenty traits and two servers. The ASGI application is called
directly, on a SQLite file or on the empty database `--database`.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import click
from rich.console import Console
from rich.table import Table
from tests.support.cloud import Cloud, Tokens

from kilonova.config import load
from kilonova.ids import new_id
from kilonova.placement.build import build
from kilonova.policy import Policy
from kilonova.services import Services
from kilonova.store import Database, open_database, upgrade

RESOURCES = "resources=VCPU:1,MEMORY_MB:512,DISK_GB:1"
QUERIES = (
    f"{RESOURCES}&limit=10",
    f"{RESOURCES}&limit=1000",
    RESOURCES,
    f"{RESOURCES}&required=CUSTOM_TRAIT_0,!HW_CPU_X86_VMX&limit=1000",
)
INVENTORIES = (("VCPU", 64, 16.0), ("MEMORY_MB", 262144, 1.5), ("DISK_GB", 4000, 1.0))
TRAITS = [f"CUSTOM_TRAIT_{number}" for number in range(20)]
SERVERS = 2
ROUNDS = 7


class Listing(NamedTuple):
    """One query: its number of candidates, size in bytes, duration and CPU time."""

    providers: int
    query: str
    candidates: int
    size: int
    milliseconds: float
    cpu_milliseconds: float


@click.command()
@click.option("--database", default=None, help="URL of an empty database.")
@click.option("--providers", default="100,1000,5000", show_default=True)
def main(database: str | None, providers: str) -> None:
    """Measure the listing of allocation candidates."""
    table = Table("Providers", "Query", "Candidates", "Bytes", "Median ms", "CPU ms")
    with tempfile.TemporaryDirectory(prefix="kilonova-bench-") as scratch:
        url = database or f"sqlite:///{Path(scratch) / 'bench.db'}"
        for one in asyncio.run(measure(url, sorted(int(number) for number in providers.split(",")))):
            query = one.query.replace(RESOURCES, "…")
            figures = (f"{one.milliseconds:.1f}", f"{one.cpu_milliseconds:.1f}")
            table.add_row(str(one.providers), query, str(one.candidates), str(one.size), *figures)
    Console(width=120).print(table)


async def measure(url: str, sizes: Sequence[int]) -> list[Listing]:
    """Every query at every size; `sizes` are ascending."""
    await upgrade(url)
    services = Services()
    services.config, services.policy, services.tokens = load(environ={}), Policy(), Tokens()
    services.db = await open_database(url)
    cloud = Cloud(services, [build()])
    existing, found = 0, []
    for size in sizes:
        await _add_providers(services.db, existing, size)
        existing = size
        if services.db.dialect == "postgresql":
            await services.db.fetch("ANALYZE")  # as autovacuum would do later
        found += [await _list(cloud, size, query) for query in QUERIES]
    await services.db.close()
    return found


async def _list(cloud: Cloud, size: int, query: str) -> Listing:
    headers = {"OpenStack-API-Version": "placement 1.39"}
    taken, cpu = [], []
    for _ in range(ROUNDS):
        began, worked = time.perf_counter(), time.process_time()
        answer = await cloud.get(f"/allocation_candidates?{query}", as_="service", root="/placement", headers=headers)
        taken.append(time.perf_counter() - began)
        cpu.append(time.process_time() - worked)
    if answer.status != 200:
        raise SystemExit(answer.body.decode())
    number = len(answer.json()["allocation_requests"])
    times = (sorted(spent)[ROUNDS // 2] * 1000 for spent in (taken, cpu))
    return Listing(size, query, number, len(answer.body), *times)


async def _add_providers(db: Database, existing: int, size: int) -> None:
    ids = range(existing + 1, size + 1)
    consumers = {number: [new_id() for _ in range(SERVERS)] for number in ids}
    async with db.transaction() as tx:
        for table, names in (("resource_classes", [name for name, _, _ in INVENTORIES]), ("traits", TRAITS)):
            await tx.execute_many(
                f"INSERT INTO {table} (name, created_at, updated_at) VALUES ($1, 0, 0) ON CONFLICT DO NOTHING",
                [(name,) for name in names],
            )
        await tx.execute_many(
            "INSERT INTO resource_providers (id, uuid, name, root_id, generation, change, facts, created_at,"
            " updated_at) VALUES ($1, $2, $3, $1, 1, 1, 1, 0, 0)",
            [(number, new_id(), f"host-{number}") for number in ids],
        )
        await tx.execute_many(
            "INSERT INTO inventories (provider_id, resource_class, total, reserved, min_unit, max_unit, step_size,"
            " allocation_ratio) VALUES ($1, $2, $3, 0, 1, $3, 1, $4)",
            [(number, *inventory) for number in ids for inventory in INVENTORIES],
        )
        await tx.execute_many(
            "INSERT INTO provider_traits (provider_id, trait) VALUES ($1, $2)",
            [(number, trait) for number in ids for trait in TRAITS],
        )
        await tx.execute_many(
            "INSERT INTO consumers (uuid, project_id, user_id, type, generation, created_at, updated_at)"
            " VALUES ($1, 'p', 'u', 'INSTANCE', 1, 0, 0)",
            [(uuid,) for uuids in consumers.values() for uuid in uuids],
        )
        await tx.execute_many(
            "INSERT INTO allocations (consumer_uuid, provider_id, resource_class, used) VALUES ($1, $2, $3, 2)",
            [
                (uuid, number, name)
                for number, uuids in consumers.items()
                for uuid in uuids
                for name, _, _ in INVENTORIES
            ],
        )


if __name__ == "__main__":
    main()
