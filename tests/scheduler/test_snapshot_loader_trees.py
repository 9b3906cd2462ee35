"""The loader reads provider trees and sharing providers."""

from __future__ import annotations

from kilonova.placement import Consumer, claim, release
from kilonova.placement.changes import mark_facts_changed
from kilonova.scheduler import Request, Scheduler, SchedulerConfig, claim_first
from kilonova.scheduler.snapshot_loader import SnapshotLoader
from kilonova.store import Database
from tests.scheduler.support import TINY, add_hosts, host_facts, nested_host_facts, place, provider_uuids
from tests.scheduler.test_snapshot_loader import RecordingDatabase
from tests.support import run
from tests.support.databases import opened

SMALL = Request(resources={"VCPU": 2, "MEMORY_MB": 512, "DISK_GB": 10})


def max_allocation(loader: SnapshotLoader, host: str, resource_class: str = "VCPU") -> float:
    row = loader.hosts.names.index(host)
    return float(loader.hosts.inventory(resource_class).max_allocation[row])


async def allocate(db: Database, consumer: str, uuid: str, **amounts: int) -> None:
    async with db.transaction() as tx:
        assert await claim(tx, Consumer(consumer, "p", "u"), {uuid: amounts})


async def change(db: Database, sql: str, *args: object, provider: str) -> None:
    """Change the provider of that name, with a number in the change sequence."""
    async with db.transaction() as tx:
        provider_id = await tx.fetch_value("SELECT id FROM resource_providers WHERE name = $1", provider)
        await tx.execute(sql, provider_id, *args)
        await mark_facts_changed(tx, [provider_id])


def test_first_refresh_reads_trees_and_pools(database):
    async def scenario():
        async with database() as db:
            await add_hosts(
                db, nested_host_facts("h1", 4, 6, pool=500), nested_host_facts("h2", 8, disk=50), host_facts("h3")
            )
            uuids = await provider_uuids(db)
            await allocate(db, "c1", uuids["h1_NUMA1"], VCPU=3)
            await allocate(db, "c2", uuids["pool"], DISK_GB=100)
            loader = SnapshotLoader(db, SchedulerConfig())
            await loader.refresh()
            assert [max_allocation(loader, host) for host in ("h1", "h2", "h3")] == [4, 8, 8]
            assert [max_allocation(loader, host, "DISK_GB") for host in ("h1", "h2", "h3")] == [400, 50, 1000]
            assert len(loader.hosts) == 3
            before = {name: max_allocation(loader, name) for name in ("h1", "h2", "h3")}
            await loader.reload()
            assert {name: max_allocation(loader, name) for name in before} == before
            assert len(loader.hosts.tracked.by_id) == 6

    run(scenario())


def test_claims_on_cells_and_pools_need_only_the_usage_read(database):
    async def scenario():
        async with database() as db:
            await add_hosts(db, *(nested_host_facts(f"h{n}", 4, 4, pool=500) for n in range(3)))
            uuids = await provider_uuids(db)
            recording = RecordingDatabase(db)
            loader = SnapshotLoader(recording, SchedulerConfig(change_overlap_seconds=0.0, liveness_seconds=1000))
            await loader.refresh()
            recording.statements.clear()
            await loader.refresh()
            assert recording.tables_read() == {"resource_providers"}
            for name in ("h1_NUMA0", "h1_NUMA1"):
                await allocate(db, name, uuids[name], VCPU=3)
            await allocate(db, "c2", uuids["pool"], DISK_GB=100)
            await loader.refresh()
            assert recording.tables_read() == {"resource_providers", "allocations"}
            assert [max_allocation(loader, f"h{n}") for n in range(3)] == [4, 1, 4]
            assert {max_allocation(loader, f"h{n}", "DISK_GB") for n in range(3)} == {400}
            async with db.transaction() as tx:
                await release(tx, "h1_NUMA1")
            await loader.refresh()
            assert max_allocation(loader, "h1") == 4

    run(scenario())


def test_refresh_adds_updates_and_removes_cells_and_pools(database):
    async def scenario():
        async with database() as db:
            await add_hosts(db, host_facts("h1"), host_facts("h2"))
            loader = SnapshotLoader(db, SchedulerConfig(change_overlap_seconds=0.0))
            await loader.refresh()
            assert loader.hosts.all_single_provider
            await add_hosts(db, nested_host_facts("h1", 4, pool=200))
            await loader.refresh()
            assert (
                max_allocation(loader, "h1"),
                max_allocation(loader, "h1", "DISK_GB"),
                max_allocation(loader, "h2", "DISK_GB"),
            ) == (4, 200, 1000)
            await add_hosts(db, nested_host_facts("h1", 4, 6, pool=300))
            await loader.refresh()
            assert (max_allocation(loader, "h1"), max_allocation(loader, "h1", "DISK_GB")) == (6, 300)
            await change(db, "UPDATE inventories SET reserved = 2 WHERE provider_id = $1", provider="h1_NUMA1")
            await loader.refresh()
            assert max_allocation(loader, "h1") == 4
            await change(
                db, "UPDATE inventories SET total = 350, max_unit = 350 WHERE provider_id = $1", provider="pool"
            )
            await loader.refresh()
            assert max_allocation(loader, "h1", "DISK_GB") == 350
            await add_hosts(db, nested_host_facts("h1", 3, pool=300))
            await loader.refresh()
            assert max_allocation(loader, "h1") == 3
            await add_hosts(db, host_facts("h1"))
            await loader.refresh()
            assert (max_allocation(loader, "h1"), max_allocation(loader, "h1", "DISK_GB")) == (8, 1000)

    run(scenario())


def test_host_that_joins_an_aggregate_reaches_its_pool(database):
    async def scenario():
        async with database() as db:
            await add_hosts(db, nested_host_facts("h1", 4, pool=5000), host_facts("h2"))
            loader = SnapshotLoader(db, SchedulerConfig(change_overlap_seconds=0.0))
            await loader.refresh()
            assert max_allocation(loader, "h2", "DISK_GB") == 1000
            aggregate = await db.fetch_value("SELECT aggregate_uuid FROM provider_aggregates LIMIT 1")
            join = "INSERT INTO provider_aggregates (provider_id, aggregate_uuid) VALUES ($1, $2)"
            await change(db, join, aggregate, provider="h2")
            await loader.refresh()
            assert max_allocation(loader, "h2", "DISK_GB") == 5000
            await change(db, "DELETE FROM provider_aggregates WHERE provider_id = $1", provider="pool")
            await loader.refresh()
            assert (max_allocation(loader, "h1", "DISK_GB"), max_allocation(loader, "h2", "DISK_GB")) == (0, 1000)
            await change(db, join, aggregate, provider="pool")
            await change(db, "DELETE FROM provider_traits WHERE provider_id = $1", provider="pool")
            await loader.refresh()
            assert max_allocation(loader, "h2", "DISK_GB") == 1000

    run(scenario())


def test_provider_above_a_host_is_not_part_of_its_tree(database):
    """An operator has put both hosts below one provider. The other host is not part of the tree."""

    async def scenario():
        async with database() as db:
            await add_hosts(db, nested_host_facts("h1", 4, disk=10), nested_host_facts("h2", 6, disk=10))
            async with db.transaction() as tx:
                above = await tx.fetch_value(
                    "INSERT INTO resource_providers (uuid, name, generation, change, facts, created_at, updated_at)"
                    " VALUES ('rack', 'rack', 0, 1000, 1000, 0, 0) RETURNING id"
                )
                await tx.execute("UPDATE resource_providers SET root_id = $1", above)
                await tx.execute(
                    "UPDATE resource_providers SET parent_id = $1, change = 1000 WHERE name IN ('h1', 'h2')",
                    above,
                )
            loader = SnapshotLoader(db, SchedulerConfig(change_overlap_seconds=0.0))
            await loader.refresh()
            assert (max_allocation(loader, "h1"), max_allocation(loader, "h2")) == (4, 6)
            scheduler = Scheduler(db)
            taken = await place(scheduler, db, SMALL, Consumer("c1", "p", "u"))
            uuids = await provider_uuids(db)
            assert set(taken.allocations) == {uuids[taken.host], uuids[f"{taken.host}_NUMA0"]}

    run(scenario())


def test_reload_reads_cells_and_pools_missing_from_the_sequence(database):
    async def scenario():
        async with database() as db:
            await add_hosts(db, nested_host_facts("h1", 4, 6, pool=200), nested_host_facts("h2", 4, pool=200))
            loader = SnapshotLoader(db, SchedulerConfig(change_overlap_seconds=0.0))
            await loader.refresh()
            async with db.transaction() as tx:  # without a number in the change sequence
                await tx.execute("DELETE FROM resource_providers WHERE name = 'h1_NUMA1'")
                await tx.execute("UPDATE inventories SET total = 5, max_unit = 5 WHERE resource_class = 'VCPU'")
                await tx.execute("DELETE FROM resource_providers WHERE name = 'pool'")
            await loader.refresh()
            assert (max_allocation(loader, "h1"), max_allocation(loader, "h1", "DISK_GB")) == (6, 200)
            await loader.reload()
            assert (
                max_allocation(loader, "h1"),
                max_allocation(loader, "h2"),
                max_allocation(loader, "h1", "DISK_GB"),
            ) == (5, 5, 0)

    run(scenario())


# From a request to a claim


def test_server_is_placed_on_cell_and_pool(database):
    async def scenario():
        async with database() as db:
            await add_hosts(db, nested_host_facts("h1", 4, 4, pool=25))
            uuids = await provider_uuids(db)
            scheduler = Scheduler(db)
            placed = [await place(scheduler, db, SMALL, Consumer(f"c{n}", "p", "u")) for n in range(2)]
            for candidate in placed:
                assert candidate.allocations.pop(uuids["pool"]) == {"DISK_GB": 10}
                [(cell, amounts)] = candidate.allocations.items()
                assert cell in (uuids["h1_NUMA0"], uuids["h1_NUMA1"])
                assert amounts == {"VCPU": 2, "MEMORY_MB": 512}
            plan = await scheduler.plan(SMALL)
            assert plan.diagnosis.sentence() == "No valid host was found: 1 host: 1 lacks 10 GB disk"

    run(scenario())


def test_lost_claim_reads_the_pool_again(sqlite_url):
    async def scenario():
        async with opened(sqlite_url) as db:
            await add_hosts(db, nested_host_facts("h1", 4, pool=15), host_facts("h2", vcpus=2))
            uuids = await provider_uuids(db)
            scheduler = Scheduler(db, SchedulerConfig(jitter=0.0, alternates=1, weights={"cpu": 1.0, "ram": 0.0}))
            plan = await scheduler.plan(SMALL)
            assert [candidate.host for candidate in plan.candidates] == ["h1"]
            async with db.transaction() as tx:  # without a number in the change sequence
                await tx.execute(
                    "UPDATE inventories SET reserved = total WHERE resource_class = 'DISK_GB'"
                    " AND provider_id = (SELECT id FROM resource_providers WHERE uuid = $1)",
                    uuids["pool"],
                )
            async with db.transaction() as tx:
                assert await claim_first(tx, plan.candidates, Consumer("c1", "p", "u")) is None
            again = await scheduler.plan(SMALL, lost=plan.uuids)
            assert [candidate.host for candidate in again.candidates] == ["h2"]

    run(scenario())


def test_hosts_without_trees_need_one_query_for_children(sqlite_url):
    async def scenario():
        async with opened(sqlite_url) as db:
            await add_hosts(db, *(host_facts(f"h{n}") for n in range(3)))
            recording = RecordingDatabase(db)
            loader = SnapshotLoader(recording, SchedulerConfig())
            await loader.refresh()
            assert sum("parent_id = ANY" in sql for sql in recording.statements) == 1
            assert loader.hosts.all_single_provider
            scheduler = Scheduler(db)
            assert (await place(scheduler, db, Request(resources=TINY), Consumer("c", "p", "u"))).allocations

    run(scenario())
