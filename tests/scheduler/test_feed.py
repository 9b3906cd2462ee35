"""The snapshot follows the database: only what changed is read, and what was overlooked is found in the end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kilonova import clock
from kilonova.placement import Consumer, Inventory, ProviderFacts, claim, hosts_changed, mirror, release, sync
from kilonova.placement.changes import HIGHEST
from kilonova.scheduler import SchedulerConfig
from kilonova.scheduler.feed import PAGE, Feed, Tail
from kilonova.store import Database, Row
from tests.scheduler.support import add_hosts, described, names, set_disabled, set_zone
from tests.support import run
from tests.support.databases import opened


class Watched:
    """A database that remembers which statements were run on it."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self.statements: list[str] = []

    async def fetch(self, sql: str, *args: Any) -> list[Row]:
        self.statements.append(" ".join(sql.split()))
        return await self._db.fetch(sql, *args)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)

    def tables_read(self) -> set[str]:
        found = {sql.split(" FROM ")[1].split()[0] for sql in self.statements}
        self.statements.clear()
        return found


def free(feed: Feed, uuid: str, resource_class: str = "VCPU") -> float:
    row = feed.hosts.row_of(uuid)
    assert row is not None
    return float(feed.hosts.stock(resource_class).free[row])


async def take(db: Database, consumer: str, uuid: str, vcpus: int) -> None:
    async with db.transaction() as tx:
        assert await claim(tx, Consumer(consumer, "p", "u"), {uuid: {"VCPU": vcpus}})


async def give(db: Database, consumer: str) -> None:
    async with db.transaction() as tx:
        await release(tx, consumer)


def test_the_first_look_reads_everything(database):
    async def scenario():
        async with database() as db:
            uuids = await add_hosts(db, *(described(f"h{n}", traits=["CUSTOM_A", "CUSTOM_B"]) for n in range(3)))
            await set_zone(db, "az1", "h1")
            await set_disabled(db, "h2", "broken fan")
            await take(db, "c1", uuids["h0"], 3)
            feed = Feed(db, SchedulerConfig())
            await feed.refresh()
            hosts = feed.hosts
            assert names(hosts, hosts.everywhere) == {"h0", "h1", "h2"}
            assert names(hosts, hosts.zone == hosts.zone_id("az1")) == {"h1"}
            assert names(hosts, hosts.zone == hosts.zone_id("nova")) == {"h0", "h2"}
            assert names(hosts, hosts.enabled) == {"h0", "h1"}
            assert names(hosts, hosts.up) == {"h0", "h1", "h2"}
            assert names(hosts, hosts.has_trait("CUSTOM_B")) == {"h0", "h1", "h2"}
            assert free(feed, uuids["h0"]) == 5
            assert free(feed, uuids["h1"]) == 8
            assert hosts.at(hosts.row_of(uuids["h2"])).disabled_reason == "broken fan"

    run(scenario())


def test_a_refresh_reads_only_what_changed(database):
    async def scenario():
        async with database() as db:
            uuids = await add_hosts(db, *(described(f"h{n}") for n in range(5)))
            watched = Watched(db)
            feed = Feed(watched, SchedulerConfig(overlap=0.0, liveness_every=1000))
            await feed.refresh()
            watched.statements.clear()

            await feed.refresh()
            assert watched.tables_read() == {"resource_providers"}

            await take(db, "c1", uuids["h3"], 2)
            await feed.refresh()
            assert watched.tables_read() == {"resource_providers", "allocations"}
            assert free(feed, uuids["h3"]) == 6

            await give(db, "c1")
            await feed.refresh()
            assert watched.tables_read() == {"resource_providers", "allocations"}
            assert free(feed, uuids["h3"]) == 8

            await set_zone(db, "az1", "h4")
            await feed.refresh()
            assert "aggregate_hosts" in watched.tables_read()
            assert names(feed.hosts, feed.hosts.zone == feed.hosts.zone_id("az1")) == {"h4"}

            await feed.refresh()
            assert watched.tables_read() == {"resource_providers"}

    run(scenario())


def test_hosts_appear_change_and_depart(database):
    async def scenario():
        async with database() as db:
            feed = Feed(db, SchedulerConfig())
            await feed.refresh()
            assert len(feed.hosts) == 0
            uuids = await add_hosts(db, described("h1"), described("h2"))
            await feed.refresh()
            assert names(feed.hosts, feed.hosts.everywhere) == {"h1", "h2"}
            await add_hosts(db, described("h1", vcpus=32, traits=["CUSTOM_NEW"]), described("h2"))
            await feed.refresh()
            assert free(feed, uuids["h1"]) == 32
            assert names(feed.hosts, feed.hosts.has_trait("CUSTOM_NEW")) == {"h1"}
            async with db.transaction() as tx:
                await hosts_changed(tx, ["h2"])
                await tx.execute("DELETE FROM hypervisors WHERE host = 'h2'")
            await feed.refresh()
            assert names(feed.hosts, feed.hosts.everywhere) == {"h1"}

    run(scenario())


def test_providers_that_are_no_hosts_are_left_alone(database):
    async def scenario():
        async with database() as db:
            watched = Watched(db)
            feed = Feed(watched, SchedulerConfig(liveness_every=1000))
            await feed.refresh()
            async with db.transaction() as tx:
                await sync(tx, [ProviderFacts("pool", "storage pool", {"DISK_GB": Inventory(1000)})])
            await feed.refresh()
            watched.statements.clear()
            await feed.refresh()
            assert watched.tables_read() == {"resource_providers"}
            assert len(feed.hosts) == 0

    run(scenario())


def test_silent_hosts_are_down_until_heard_again(sqlite_url, monkeypatch):
    async def scenario():
        async with opened(sqlite_url) as db:
            await add_hosts(db, described("h1"), described("h2"))
            start = clock.now()
            feed = Feed(db, SchedulerConfig(), down_time=60)
            await feed.refresh()
            assert names(feed.hosts, feed.hosts.up) == {"h1", "h2"}

            async def heard(host: str, after: float) -> None:
                async with db.transaction() as tx:
                    await tx.execute("UPDATE services SET last_seen_at = $2 WHERE host = $1", host, start + after)

            await heard("h2", 50)
            monkeypatch.setattr(clock, "now", lambda: start + 70)
            await feed.refresh()
            assert names(feed.hosts, feed.hosts.up) == {"h2"}
            await heard("h1", 71)
            monkeypatch.setattr(clock, "now", lambda: start + 72)
            await feed.refresh()
            assert names(feed.hosts, feed.hosts.up) == {"h1", "h2"}

    run(scenario())


def test_a_change_that_commits_late_with_a_lower_number_is_seen(postgresql_url):
    """Two transactions draw numbers; the higher one commits first and is read before the lower one is there."""

    async def scenario():
        async with opened(postgresql_url) as db:
            uuids = await add_hosts(db, described("early"), described("late"))
            feed = Feed(db, SchedulerConfig(overlap=0.4))
            await feed.refresh()
            drawn, commit = asyncio.Event(), asyncio.Event()

            async def claim_slowly() -> None:
                async with db.transaction() as tx:
                    assert await claim(tx, Consumer("slow", "p", "u"), {uuids["late"]: {"VCPU": 5}})
                    drawn.set()
                    await commit.wait()

            slow = asyncio.create_task(claim_slowly())
            await drawn.wait()
            for number in range(3):
                await take(db, f"quick-{number}", uuids["early"], 1)
            await feed.refresh()
            assert (free(feed, uuids["early"]), free(feed, uuids["late"])) == (5, 8)
            commit.set()
            await slow
            rows = await db.fetch("SELECT change FROM resource_providers ORDER BY name")
            assert rows[1]["change"] < rows[0]["change"]
            async with asyncio.timeout(60):
                while free(feed, uuids["late"]) != 3:
                    await asyncio.sleep(0.02)
                    await feed.refresh()

    run(scenario())


def test_a_look_goes_back_to_what_was_highest_some_time_ago():
    tail = Tail(overlap=2.0)
    assert not tail.started
    tail.start(1000)
    tail.start(5)  # a later reload begins nothing anew
    assert tail.since(10.0) == 1000 - PAGE  # wide: who drew a number before the load may commit now
    tail.saw(1010)
    assert tail.since(10.1) == 1010  # narrow
    assert tail.since(10.5) == 1000 - PAGE
    tail.saw(1020)
    assert tail.since(12.0) == 1000 - PAGE
    assert tail.since(12.5) == 1000  # highest at 10.0, two seconds before the last wide look
    assert tail.since(13.0) == 1010
    for now in (14.0, 15.0, 16.0, 17.0):
        tail.since(now)
    assert tail.since(18.0) == 1020


def test_a_single_writer_needs_no_look_back():
    tail = Tail(overlap=0.0)
    tail.start(1000)
    assert tail.since(10.0) == 1000
    tail.saw(900)
    tail.saw(1001)
    assert tail.since(20.0) == 1001


def test_a_reload_finds_what_was_overlooked(database):
    async def scenario():
        async with database() as db:
            uuids = await add_hosts(db, described("h1"), described("h2"), described("h3"))
            feed = Feed(db, SchedulerConfig(overlap=0.0))
            await feed.refresh()
            async with db.transaction() as tx:  # nobody says that these changed
                await tx.execute("UPDATE inventories SET total = 99 WHERE resource_class = 'VCPU'")
                await tx.execute("DELETE FROM hypervisors WHERE host = 'h2'")
                await tx.execute("DELETE FROM resource_providers WHERE uuid = $1", uuids["h3"])
            await feed.refresh()
            assert (len(feed.hosts), free(feed, uuids["h1"])) == (3, 8)
            await feed.reload()
            assert names(feed.hosts, feed.hosts.everywhere) == {"h1"}
            assert free(feed, uuids["h1"]) == 99

    run(scenario())


def test_hosts_that_go_are_forgotten_at_once(database):
    async def scenario():
        async with database() as db:
            uuids = await add_hosts(db, described("h1"), described("h2"), described("h3"))
            feed = Feed(db, SchedulerConfig(overlap=0.0))
            await feed.refresh()
            async with db.transaction() as tx:
                await mirror.host_deleted(tx, "h3")
            await feed.refresh()
            assert names(feed.hosts, feed.hosts.everywhere) == {"h1", "h2"}
            # The last change was one of a provider that is no more. What comes after it is seen all the same.
            async with db.transaction() as tx:
                assert await claim(tx, Consumer("c", "p", "u"), {uuids["h1"]: {"VCPU": 3}})
            await feed.refresh()
            assert free(feed, uuids["h1"]) == 5

    run(scenario())


def test_who_went_long_ago_is_forgotten(database, monkeypatch):
    async def scenario():
        async with database() as db:
            await add_hosts(db, *(described(f"h{n}") for n in range(4)))
            highest = []
            for n, hours in enumerate((0, 0, 2, 4)):
                monkeypatch.setattr(clock, "now", lambda hours=hours: 1e9 + 3600 * hours)
                async with db.transaction() as tx:
                    await mirror.host_deleted(tx, f"h{n}")
                highest.append(await db.fetch_value(f"SELECT {HIGHEST}"))
            assert highest == sorted(set(highest))
            gone = await db.fetch("SELECT change FROM departed_providers")
            assert [row["change"] for row in gone] == highest[3:]

    run(scenario())


def test_a_doubted_host_is_read_anew(sqlite_url):
    async def scenario():
        async with opened(sqlite_url) as db:
            uuids = await add_hosts(db, described("h1"), described("h2"))
            feed = Feed(db, SchedulerConfig(overlap=0.0))
            await feed.refresh()
            async with db.transaction() as tx:
                await tx.execute("DELETE FROM resource_providers WHERE uuid = $1", uuids["h1"])
            feed.doubt([uuids["h1"], uuids["h2"], "unknown"])
            await feed.refresh()
            assert names(feed.hosts, feed.hosts.everywhere) == {"h2"}

    run(scenario())


@pytest.mark.parametrize("number", [249, 250, 251, 600])
def test_pages_leave_nobody_out(sqlite_url, number):
    async def scenario():
        async with opened(sqlite_url) as db:
            await add_hosts(db, *(described(f"h{n}") for n in range(number)))
            feed = Feed(db, SchedulerConfig())
            await feed.refresh()
            assert len(feed.hosts) == number

    run(scenario())
