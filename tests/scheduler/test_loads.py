"""What the snapshot knows of hosts beside their resources: aggregates, hypervisors, servers, operations, failures."""

from __future__ import annotations

import time
from types import SimpleNamespace

from kilonova import clock
from kilonova.operations import Operation, Step, begin
from kilonova.placement import Consumer, claim, hosts_changed
from kilonova.scheduler import Request, Scheduler, SchedulerConfig
from kilonova.scheduler.feed import Feed
from kilonova.store import Database
from tests.scheduler.support import TINY, add_hosts, described, rehearsed, set_zone
from tests.scheduler.test_feed import Watched
from tests.support import run
from tests.support.cloud import put_server
from tests.support.databases import opened


async def nothing(op: Operation) -> None:
    pass


class Busy(Operation):
    kind = "busy in a test"
    action = "busy"

    @staticmethod
    def steps() -> tuple[Step, ...]:
        return (Step("be busy", nothing, undo=None, why="it does nothing", deadline=1),)


async def busy(db: Database, host: str | None) -> str:
    async with db.transaction() as tx:
        return await begin(tx, Busy, host=host)


def test_aggregates_come_with_their_metadata_and_follow_it(database):
    async def scenario():
        async with database() as db:
            await add_hosts(db, described("h1"), described("h2"))
            await set_zone(db, "az1", "h1", "h2")
            feed = Feed(db, SchedulerConfig())
            await feed.refresh()
            (number,) = feed.hosts.aggregates.having("availability_zone")
            assert feed.hosts.at(0).aggregates == [{"availability_zone": "az1"}]
            async with db.transaction() as tx:
                await tx.execute("UPDATE aggregate_metadata SET value = 'az2'")
                await tx.execute("INSERT INTO aggregate_metadata VALUES ($1, 'ssd', 'true')", number)
                await tx.execute("DELETE FROM aggregate_hosts WHERE host = 'h2'")
                await hosts_changed(tx, ["h1", "h2"])
            await feed.refresh()
            assert {feed.hosts.at(row).name: feed.hosts.at(row).aggregates for row in (0, 1)} == {
                "h1": [{"availability_zone": "az2", "ssd": "true"}],
                "h2": [],
            }
            assert {feed.hosts.at(row).name: feed.hosts.at(row).zone for row in (0, 1)} == {"h1": "az2", "h2": "nova"}

    run(scenario())


def test_hosts_of_a_kind_share_its_description(sqlite_url):
    async def scenario():
        async with opened(sqlite_url) as db:
            await add_hosts(db, *(described(f"h{n}") for n in range(3)))
            async with db.transaction() as tx:
                await tx.execute("UPDATE hypervisors SET cpu_info = $1 WHERE host = 'h2'", '{"arch": "aarch64"}')
            feed = Feed(db, SchedulerConfig())
            await feed.refresh()
            kinds = {feed.hosts.at(row).name: feed.hosts.at(row).machine for row in range(3)}
            assert len(feed.hosts.machines.kinds) == 2
            assert kinds["h0"] is kinds["h1"]
            assert (kinds["h0"].type, kinds["h0"].version, kinds["h0"].release) == ("sim", 1, "0.0.1")
            assert kinds["h2"].architecture == "aarch64"
            assert feed.hosts.at(0).address == "192.0.2.1"

    run(scenario())


def test_servers_are_counted_only_for_those_who_ask(database):
    async def scenario():
        async with database() as db:
            uuids = await add_hosts(db, described("h1"), described("h2"))
            await put_server(db, "s1", host="h1", hypervisor_hostname="h1")
            await put_server(db, "s2", host="h1", hypervisor_hostname="h1", deleted=True)
            watched = Watched(db)
            feed = Feed(watched, SchedulerConfig())
            await feed.refresh()
            assert "servers" not in watched.tables_read()
            assert not feed.hosts.loads.servers.any()

            feed = Feed(watched, SchedulerConfig(), reads=frozenset({"servers"}))
            await feed.refresh()
            assert feed.hosts.loads.servers[feed.hosts.row_of(uuids["h1"])] == 1
            await put_server(db, "s3", host="h1", hypervisor_hostname="h1")
            async with db.transaction() as tx:
                assert await claim(tx, Consumer("s3", "p", "u"), {uuids["h1"]: {"VCPU": 1}})
            await feed.refresh()
            assert feed.hosts.loads.servers[feed.hosts.row_of(uuids["h1"])] == 2
            assert feed.hosts.loads.servers[feed.hosts.row_of(uuids["h2"])] == 0

    run(scenario())


def test_operations_are_counted_until_they_end(database):
    async def scenario():
        async with database() as db:
            await add_hosts(db, described("h1"))
            first = await busy(db, "h1")
            await busy(db, "h1")
            await busy(db, None)
            feed = Feed(db, SchedulerConfig(liveness_every=0.0), reads=frozenset({"operations"}))
            await feed.refresh()
            assert feed.hosts.loads.operations == {"h1": 2}
            async with db.transaction() as tx:
                await tx.execute("UPDATE operations SET finished_at = $1 WHERE id = $2", clock.now(), first)
            await feed.refresh()
            assert feed.hosts.loads.operations == {"h1": 1}

    run(scenario())


def test_a_host_that_failed_to_build_comes_last_until_it_builds(sqlite_url):
    async def scenario():
        async with opened(sqlite_url) as db:
            await add_hosts(db, described("h1", vcpus=64), described("h2"), described("h3"))
            scheduler = Scheduler(db, SchedulerConfig(jitter=0.0))

            async def hosts() -> list[str]:
                return [one.host for one in (await rehearsed(scheduler, Request(resources=TINY))).candidates]

            assert (await hosts())[0] == "h1"
            scheduler.built("h1", False)
            assert (await hosts())[-1] == "h1"
            scheduler.built("h1", True)
            assert (await hosts())[0] == "h1"
            scheduler.unheard("h1")
            assert (await hosts())[-1] == "h1"
            scheduler.built("h1", True)
            assert (await hosts())[0] == "h1"

    run(scenario())


def test_that_a_host_did_not_answer_counts_until_its_silence_would_show(sqlite_url, monkeypatch):
    def later() -> float:
        return time.monotonic() + 301

    async def scenario():
        async with opened(sqlite_url) as db:
            await add_hosts(db, described("h1", vcpus=64), described("h2"))
            scheduler = Scheduler(db, SchedulerConfig(jitter=0.0), down_time=300)
            await heard_in_an_hour(db)
            scheduler.unheard("h1")
            assert (await scheduler.plan(Request(resources=TINY))).candidates[0].host == "h2"
            monkeypatch.setattr("kilonova.scheduler.scheduler.time", SimpleNamespace(monotonic=later))
            assert (await scheduler.plan(Request(resources=TINY))).candidates[0].host == "h1"

    run(scenario())


async def heard_in_an_hour(db: Database) -> None:
    async with db.transaction() as tx:
        await tx.execute("UPDATE services SET last_seen_at = $1", clock.now() + 3600)
