"""The snapshot follows providers below hosts and providers that hosts share, as it follows the hosts themselves."""

from __future__ import annotations

from kilonova.placement import Consumer, claim, release
from kilonova.placement.changes import facts_changed
from kilonova.scheduler import Request, Scheduler, SchedulerConfig, claim_first
from kilonova.scheduler.feed import Feed
from kilonova.store import Database
from tests.scheduler.support import TINY, add_hosts, described, place, provider_uuids, shaped
from tests.scheduler.test_feed import Watched
from tests.support import run
from tests.support.databases import opened

SMALL = Request(resources={"VCPU": 2, "MEMORY_MB": 512, "DISK_GB": 10})


def room(feed: Feed, host: str, resource_class: str = "VCPU") -> float:
    row = feed.hosts.names.index(host)
    return float(feed.hosts.stock(resource_class).room[row])


async def take(db: Database, consumer: str, uuid: str, **amounts: int) -> None:
    async with db.transaction() as tx:
        assert await claim(tx, Consumer(consumer, "p", "u"), {uuid: amounts})


async def change(db: Database, sql: str, *args: object, of: str) -> None:
    """Change something about the provider of that name, and say so."""
    async with db.transaction() as tx:
        provider_id = await tx.fetch_value("SELECT id FROM resource_providers WHERE name = $1", of)
        await tx.execute(sql, provider_id, *args)
        await facts_changed(tx, [provider_id])


def test_the_first_look_finds_trees_and_pools(database):
    async def scenario():
        async with database() as db:
            await add_hosts(db, shaped("h1", 4, 6, pool=500), shaped("h2", 8, disk=50), described("h3"))
            uuids = await provider_uuids(db)
            await take(db, "c1", uuids["h1_NUMA1"], VCPU=3)
            await take(db, "c2", uuids["pool"], DISK_GB=100)
            feed = Feed(db, SchedulerConfig())
            await feed.refresh()
            assert [room(feed, host) for host in ("h1", "h2", "h3")] == [4, 8, 8]
            assert [room(feed, host, "DISK_GB") for host in ("h1", "h2", "h3")] == [400, 50, 1000]
            assert len(feed.hosts) == 3
            before = {name: room(feed, name) for name in ("h1", "h2", "h3")}
            await feed.reload()
            assert {name: room(feed, name) for name in before} == before
            assert len(feed.hosts.forest.members) == 6

    run(scenario())


def test_claims_below_hosts_and_on_pools_are_followed_by_their_sums_alone(database):
    async def scenario():
        async with database() as db:
            await add_hosts(db, *(shaped(f"h{n}", 4, 4, pool=500) for n in range(3)))
            uuids = await provider_uuids(db)
            watched = Watched(db)
            feed = Feed(watched, SchedulerConfig(overlap=0.0, liveness_every=1000))
            await feed.refresh()
            watched.statements.clear()
            await feed.refresh()
            assert watched.tables_read() == {"resource_providers"}
            for name in ("h1_NUMA0", "h1_NUMA1"):
                await take(db, name, uuids[name], VCPU=3)
            await take(db, "c2", uuids["pool"], DISK_GB=100)
            await feed.refresh()
            assert watched.tables_read() == {"resource_providers", "allocations"}
            assert [room(feed, f"h{n}") for n in range(3)] == [4, 1, 4]
            assert {room(feed, f"h{n}", "DISK_GB") for n in range(3)} == {400}
            async with db.transaction() as tx:
                await release(tx, "h1_NUMA1")
            await feed.refresh()
            assert room(feed, "h1") == 4

    run(scenario())


def test_cells_and_pools_appear_change_and_go(database):
    async def scenario():
        async with database() as db:
            await add_hosts(db, described("h1"), described("h2"))
            feed = Feed(db, SchedulerConfig(overlap=0.0))
            await feed.refresh()
            assert feed.hosts.simple
            await add_hosts(db, shaped("h1", 4, pool=200))
            await feed.refresh()
            assert (room(feed, "h1"), room(feed, "h1", "DISK_GB"), room(feed, "h2", "DISK_GB")) == (4, 200, 1000)
            await add_hosts(db, shaped("h1", 4, 6, pool=300))
            await feed.refresh()
            assert (room(feed, "h1"), room(feed, "h1", "DISK_GB")) == (6, 300)
            await change(db, "UPDATE inventories SET reserved = 2 WHERE provider_id = $1", of="h1_NUMA1")
            await feed.refresh()
            assert room(feed, "h1") == 4
            await change(db, "UPDATE inventories SET total = 350, max_unit = 350 WHERE provider_id = $1", of="pool")
            await feed.refresh()
            assert room(feed, "h1", "DISK_GB") == 350
            await add_hosts(db, shaped("h1", 3, pool=300))
            await feed.refresh()
            assert room(feed, "h1") == 3
            await add_hosts(db, described("h1"))
            await feed.refresh()
            assert (room(feed, "h1"), room(feed, "h1", "DISK_GB")) == (8, 1000)

    run(scenario())


def test_who_joins_an_aggregate_reaches_its_pool(database):
    async def scenario():
        async with database() as db:
            await add_hosts(db, shaped("h1", 4, pool=5000), described("h2"))
            feed = Feed(db, SchedulerConfig(overlap=0.0))
            await feed.refresh()
            assert room(feed, "h2", "DISK_GB") == 1000
            aggregate = await db.fetch_value("SELECT aggregate_uuid FROM provider_aggregates LIMIT 1")
            join = "INSERT INTO provider_aggregates (provider_id, aggregate_uuid) VALUES ($1, $2)"
            await change(db, join, aggregate, of="h2")
            await feed.refresh()
            assert room(feed, "h2", "DISK_GB") == 5000
            await change(db, "DELETE FROM provider_aggregates WHERE provider_id = $1", of="pool")
            await feed.refresh()
            assert (room(feed, "h1", "DISK_GB"), room(feed, "h2", "DISK_GB")) == (0, 1000)
            await change(db, join, aggregate, of="pool")
            await change(db, "DELETE FROM provider_traits WHERE provider_id = $1", of="pool")
            await feed.refresh()
            assert room(feed, "h2", "DISK_GB") == 1000

    run(scenario())


def test_an_operators_provider_above_a_host_is_not_part_of_it(database):
    """Two hosts below one provider of an operator's own: what stands beside a host is not the host's."""

    async def scenario():
        async with database() as db:
            await add_hosts(db, shaped("h1", 4, disk=10), shaped("h2", 6, disk=10))
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
            feed = Feed(db, SchedulerConfig(overlap=0.0))
            await feed.refresh()
            assert (room(feed, "h1"), room(feed, "h2")) == (4, 6)
            scheduler = Scheduler(db)
            taken = await place(scheduler, db, SMALL, Consumer("c1", "p", "u"))
            uuids = await provider_uuids(db)
            assert set(taken.allocations) == {uuids[taken.host], uuids[f"{taken.host}_NUMA0"]}

    run(scenario())


def test_a_reload_finds_cells_and_pools_that_were_overlooked(database):
    async def scenario():
        async with database() as db:
            await add_hosts(db, shaped("h1", 4, 6, pool=200), shaped("h2", 4, pool=200))
            feed = Feed(db, SchedulerConfig(overlap=0.0))
            await feed.refresh()
            async with db.transaction() as tx:  # nobody says that these changed
                await tx.execute("DELETE FROM resource_providers WHERE name = 'h1_NUMA1'")
                await tx.execute("UPDATE inventories SET total = 5, max_unit = 5 WHERE resource_class = 'VCPU'")
                await tx.execute("DELETE FROM resource_providers WHERE name = 'pool'")
            await feed.refresh()
            assert (room(feed, "h1"), room(feed, "h1", "DISK_GB")) == (6, 200)
            await feed.reload()
            assert (room(feed, "h1"), room(feed, "h2"), room(feed, "h1", "DISK_GB")) == (5, 5, 0)

    run(scenario())


# From a request to a claim


def test_a_server_is_placed_in_a_cell_and_on_the_pool(database):
    async def scenario():
        async with database() as db:
            await add_hosts(db, shaped("h1", 4, 4, pool=25))
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


def test_a_pool_wrongly_believed_free_is_read_anew_after_a_lost_claim(sqlite_url):
    async def scenario():
        async with opened(sqlite_url) as db:
            await add_hosts(db, shaped("h1", 4, pool=15), described("h2", vcpus=2))
            uuids = await provider_uuids(db)
            scheduler = Scheduler(db, SchedulerConfig(jitter=0.0, alternates=1, weights={"cpu": 1.0, "ram": 0.0}))
            plan = await scheduler.plan(SMALL)
            assert [candidate.host for candidate in plan.candidates] == ["h1"]
            async with db.transaction() as tx:  # a change that does not show in the sequence
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


def test_a_plain_cloud_reads_no_more_tables_than_it_has_to(sqlite_url):
    async def scenario():
        async with opened(sqlite_url) as db:
            await add_hosts(db, *(described(f"h{n}") for n in range(3)))
            watched = Watched(db)
            feed = Feed(watched, SchedulerConfig())
            await feed.refresh()
            assert sum("parent_id = ANY" in sql for sql in watched.statements) == 1
            assert feed.hosts.simple
            scheduler = Scheduler(db)
            assert (await place(scheduler, db, Request(resources=TINY), Consumer("c", "p", "u"))).allocations

    run(scenario())
