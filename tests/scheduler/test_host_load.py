"""The snapshot's aggregates, hypervisors, and counts of servers, operations and failures."""

from __future__ import annotations

import time
from types import SimpleNamespace

from kilonova import clock
from kilonova.operations import Operation, Step, begin
from kilonova.placement import Consumer, claim, mark_hosts_changed
from kilonova.scheduler import Request, Scheduler, SchedulerConfig
from kilonova.scheduler.snapshot_loader import SnapshotLoader
from kilonova.store import Database
from tests.scheduler.support import TINY, add_hosts, dry_run, host_facts, set_zone
from tests.scheduler.test_snapshot_loader import RecordingDatabase
from tests.support import run
from tests.support.cloud import put_server
from tests.support.databases import opened


async def do_nothing(op: Operation) -> None:
    pass


class IdleOperation(Operation):
    kind = "busy in a test"
    action = "busy"

    @staticmethod
    def steps() -> tuple[Step, ...]:
        return (Step("be busy", do_nothing, undo=None, why="it does nothing", deadline=1),)


async def begin_operation(db: Database, host: str | None) -> str:
    async with db.transaction() as tx:
        return await begin(tx, IdleOperation, host=host)


def test_loader_reads_aggregates_with_metadata(database):
    async def scenario():
        async with database() as db:
            await add_hosts(db, host_facts("h1"), host_facts("h2"))
            await set_zone(db, "az1", "h1", "h2")
            loader = SnapshotLoader(db, SchedulerConfig())
            await loader.refresh()
            (number,) = loader.hosts.aggregates.having("availability_zone")
            assert loader.hosts.at(0).aggregates == [{"availability_zone": "az1"}]
            async with db.transaction() as tx:
                await tx.execute("UPDATE aggregate_metadata SET value = 'az2'")
                await tx.execute("INSERT INTO aggregate_metadata VALUES ($1, 'ssd', 'true')", number)
                await tx.execute("DELETE FROM aggregate_hosts WHERE host = 'h2'")
                await mark_hosts_changed(tx, ["h1", "h2"])
            await loader.refresh()
            assert {loader.hosts.at(row).name: loader.hosts.at(row).aggregates for row in (0, 1)} == {
                "h1": [{"availability_zone": "az2", "ssd": "true"}],
                "h2": [],
            }
            assert {loader.hosts.at(row).name: loader.hosts.at(row).zone for row in (0, 1)} == {
                "h1": "az2",
                "h2": "nova",
            }

    run(scenario())


def test_equal_hypervisors_share_one_kind(sqlite_url):
    async def scenario():
        async with opened(sqlite_url) as db:
            await add_hosts(db, *(host_facts(f"h{n}") for n in range(3)))
            async with db.transaction() as tx:
                await tx.execute("UPDATE hypervisors SET cpu_info = $1 WHERE host = 'h2'", '{"arch": "aarch64"}')
            loader = SnapshotLoader(db, SchedulerConfig())
            await loader.refresh()
            kinds = {loader.hosts.at(row).name: loader.hosts.at(row).hypervisor_kind for row in range(3)}
            assert len(loader.hosts.hypervisors.kinds) == 2
            assert kinds["h0"] is kinds["h1"]
            assert (kinds["h0"].type, kinds["h0"].version, kinds["h0"].release) == ("sim", 1, "0.0.1")
            assert kinds["h2"].architecture == "aarch64"
            assert loader.hosts.at(0).address == "192.0.2.1"

    run(scenario())


def test_servers_are_counted_only_if_required(database):
    async def scenario():
        async with database() as db:
            uuids = await add_hosts(db, host_facts("h1"), host_facts("h2"))
            await put_server(db, "s1", host="h1", hypervisor_hostname="h1")
            await put_server(db, "s2", host="h1", hypervisor_hostname="h1", deleted=True)
            recording = RecordingDatabase(db)
            loader = SnapshotLoader(recording, SchedulerConfig())
            await loader.refresh()
            assert "servers" not in recording.tables_read()
            assert not loader.hosts.loads.servers.any()

            loader = SnapshotLoader(recording, SchedulerConfig(), counts=frozenset({"servers"}))
            await loader.refresh()
            assert loader.hosts.loads.servers[loader.hosts.row_of(uuids["h1"])] == 1
            await put_server(db, "s3", host="h1", hypervisor_hostname="h1")
            async with db.transaction() as tx:
                assert await claim(tx, Consumer("s3", "p", "u"), {uuids["h1"]: {"VCPU": 1}})
            await loader.refresh()
            assert loader.hosts.loads.servers[loader.hosts.row_of(uuids["h1"])] == 2
            assert loader.hosts.loads.servers[loader.hosts.row_of(uuids["h2"])] == 0

    run(scenario())


def test_operations_are_counted_until_finished(database):
    async def scenario():
        async with database() as db:
            await add_hosts(db, host_facts("h1"))
            first = await begin_operation(db, "h1")
            await begin_operation(db, "h1")
            await begin_operation(db, None)
            loader = SnapshotLoader(db, SchedulerConfig(liveness_seconds=0.0), counts=frozenset({"operations"}))
            await loader.refresh()
            assert loader.hosts.loads.operations == {"h1": 2}
            async with db.transaction() as tx:
                await tx.execute("UPDATE operations SET finished_at = $1 WHERE id = $2", clock.now(), first)
            await loader.refresh()
            assert loader.hosts.loads.operations == {"h1": 1}

    run(scenario())


def test_host_with_failed_build_comes_last_until_it_builds(sqlite_url):
    async def scenario():
        async with opened(sqlite_url) as db:
            await add_hosts(db, host_facts("h1", vcpus=64), host_facts("h2"), host_facts("h3"))
            scheduler = Scheduler(db, SchedulerConfig(jitter=0.0))

            async def hosts() -> list[str]:
                return [one.host for one in (await dry_run(scheduler, Request(resources=TINY))).candidates]

            assert (await hosts())[0] == "h1"
            scheduler.record_build("h1", False)
            assert (await hosts())[-1] == "h1"
            scheduler.record_build("h1", True)
            assert (await hosts())[0] == "h1"
            scheduler.mark_unreachable("h1")
            assert (await hosts())[-1] == "h1"
            scheduler.record_build("h1", True)
            assert (await hosts())[0] == "h1"

    run(scenario())


def test_unreachable_host_comes_last_until_down_time_has_passed(sqlite_url, monkeypatch):
    def later() -> float:
        return time.monotonic() + 301

    async def scenario():
        async with opened(sqlite_url) as db:
            await add_hosts(db, host_facts("h1", vcpus=64), host_facts("h2"))
            scheduler = Scheduler(db, SchedulerConfig(jitter=0.0), down_seconds=300)
            await set_future_heartbeats(db)
            scheduler.mark_unreachable("h1")
            assert (await scheduler.plan(Request(resources=TINY))).candidates[0].host == "h2"
            monkeypatch.setattr("kilonova.scheduler.scheduler.time", SimpleNamespace(monotonic=later))
            assert (await scheduler.plan(Request(resources=TINY))).candidates[0].host == "h1"

    run(scenario())


async def set_future_heartbeats(db: Database) -> None:
    async with db.transaction() as tx:
        await tx.execute("UPDATE services SET last_seen_at = $1", clock.now() + 3600)
