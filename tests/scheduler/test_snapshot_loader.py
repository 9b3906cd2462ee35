"""The loader reads changes into the snapshot, and reloads correct missed changes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kilonova import clock
from kilonova.placement import (
    Consumer,
    HostProviders,
    Inventory,
    claim,
    mark_hosts_changed,
    mirror,
    release,
    sync_providers,
)
from kilonova.placement.changes import LAST_CHANGE
from kilonova.scheduler import SchedulerConfig
from kilonova.scheduler.snapshot_loader import PAGE_SIZE, ChangeCursor, SnapshotLoader
from kilonova.store import Database, Row
from tests.scheduler.support import add_hosts, host_facts, names, set_disabled, set_zone
from tests.support import run
from tests.support.databases import opened


class RecordingDatabase:
    """A database that records its statements."""

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


def free(loader: SnapshotLoader, uuid: str, resource_class: str = "VCPU") -> float:
    row = loader.hosts.row_of(uuid)
    assert row is not None
    return float(loader.hosts.inventory(resource_class).free[row])


async def allocate(db: Database, consumer: str, uuid: str, vcpus: int) -> None:
    async with db.transaction() as tx:
        assert await claim(tx, Consumer(consumer, "p", "u"), {uuid: {"VCPU": vcpus}})


async def deallocate(db: Database, consumer: str) -> None:
    async with db.transaction() as tx:
        await release(tx, consumer)


def test_first_refresh_reads_all_hosts(database):
    async def scenario():
        async with database() as db:
            uuids = await add_hosts(db, *(host_facts(f"h{n}", traits=["CUSTOM_A", "CUSTOM_B"]) for n in range(3)))
            await set_zone(db, "az1", "h1")
            await set_disabled(db, "h2", "broken fan")
            await allocate(db, "c1", uuids["h0"], 3)
            loader = SnapshotLoader(db, SchedulerConfig())
            await loader.refresh()
            hosts = loader.hosts
            assert names(hosts, hosts.everywhere) == {"h0", "h1", "h2"}
            assert names(hosts, hosts.zone == hosts.zone_id("az1")) == {"h1"}
            assert names(hosts, hosts.zone == hosts.zone_id("nova")) == {"h0", "h2"}
            assert names(hosts, hosts.enabled) == {"h0", "h1"}
            assert names(hosts, hosts.up) == {"h0", "h1", "h2"}
            assert names(hosts, hosts.has_trait("CUSTOM_B")) == {"h0", "h1", "h2"}
            assert free(loader, uuids["h0"]) == 5
            assert free(loader, uuids["h1"]) == 8
            assert hosts.at(hosts.row_of(uuids["h2"])).disabled_reason == "broken fan"

    run(scenario())


def test_refresh_reads_only_changes(database):
    async def scenario():
        async with database() as db:
            uuids = await add_hosts(db, *(host_facts(f"h{n}") for n in range(5)))
            recording = RecordingDatabase(db)
            loader = SnapshotLoader(recording, SchedulerConfig(change_overlap_seconds=0.0, liveness_seconds=1000))
            await loader.refresh()
            recording.statements.clear()

            await loader.refresh()
            assert recording.tables_read() == {"resource_providers"}

            await allocate(db, "c1", uuids["h3"], 2)
            await loader.refresh()
            assert recording.tables_read() == {"resource_providers", "allocations"}
            assert free(loader, uuids["h3"]) == 6

            await deallocate(db, "c1")
            await loader.refresh()
            assert recording.tables_read() == {"resource_providers", "allocations"}
            assert free(loader, uuids["h3"]) == 8

            await set_zone(db, "az1", "h4")
            await loader.refresh()
            assert "aggregate_hosts" in recording.tables_read()
            assert names(loader.hosts, loader.hosts.zone == loader.hosts.zone_id("az1")) == {"h4"}

            await loader.refresh()
            assert recording.tables_read() == {"resource_providers"}

    run(scenario())


def test_refresh_adds_updates_and_removes_hosts(database):
    async def scenario():
        async with database() as db:
            loader = SnapshotLoader(db, SchedulerConfig())
            await loader.refresh()
            assert len(loader.hosts) == 0
            uuids = await add_hosts(db, host_facts("h1"), host_facts("h2"))
            await loader.refresh()
            assert names(loader.hosts, loader.hosts.everywhere) == {"h1", "h2"}
            await add_hosts(db, host_facts("h1", vcpus=32, traits=["CUSTOM_NEW"]), host_facts("h2"))
            await loader.refresh()
            assert free(loader, uuids["h1"]) == 32
            assert names(loader.hosts, loader.hosts.has_trait("CUSTOM_NEW")) == {"h1"}
            async with db.transaction() as tx:
                await mark_hosts_changed(tx, ["h2"])
                await tx.execute("DELETE FROM hypervisors WHERE host = 'h2'")
            await loader.refresh()
            assert names(loader.hosts, loader.hosts.everywhere) == {"h1"}

    run(scenario())


def test_providers_outside_of_hosts_are_ignored(database):
    async def scenario():
        async with database() as db:
            recording = RecordingDatabase(db)
            loader = SnapshotLoader(recording, SchedulerConfig(liveness_seconds=1000))
            await loader.refresh()
            async with db.transaction() as tx:
                await sync_providers(tx, [HostProviders("pool", "storage pool", {"DISK_GB": Inventory(1000)})])
            await loader.refresh()
            recording.statements.clear()
            await loader.refresh()
            assert recording.tables_read() == {"resource_providers"}
            assert len(loader.hosts) == 0

    run(scenario())


def test_hosts_without_heartbeat_are_down_until_next_heartbeat(sqlite_url, monkeypatch):
    async def scenario():
        async with opened(sqlite_url) as db:
            await add_hosts(db, host_facts("h1"), host_facts("h2"))
            start = clock.now()
            loader = SnapshotLoader(db, SchedulerConfig(), down_seconds=60)
            await loader.refresh()
            assert names(loader.hosts, loader.hosts.up) == {"h1", "h2"}

            async def set_heartbeat(host: str, after: float) -> None:
                async with db.transaction() as tx:
                    await tx.execute("UPDATE services SET last_seen_at = $2 WHERE host = $1", host, start + after)

            await set_heartbeat("h2", 50)
            monkeypatch.setattr(clock, "now", lambda: start + 70)
            await loader.refresh()
            assert names(loader.hosts, loader.hosts.up) == {"h2"}
            await set_heartbeat("h1", 71)
            monkeypatch.setattr(clock, "now", lambda: start + 72)
            await loader.refresh()
            assert names(loader.hosts, loader.hosts.up) == {"h1", "h2"}

    run(scenario())


def test_late_commit_with_lower_change_number_is_read(postgresql_url):
    """Two transactions draw numbers. The higher one commits first, and is read before the lower one commits."""

    async def scenario():
        async with opened(postgresql_url) as db:
            uuids = await add_hosts(db, host_facts("early"), host_facts("late"))
            loader = SnapshotLoader(db, SchedulerConfig(change_overlap_seconds=0.4))
            await loader.refresh()
            drawn, commit = asyncio.Event(), asyncio.Event()

            async def claim_slowly() -> None:
                async with db.transaction() as tx:
                    assert await claim(tx, Consumer("slow", "p", "u"), {uuids["late"]: {"VCPU": 5}})
                    drawn.set()
                    await commit.wait()

            slow = asyncio.create_task(claim_slowly())
            await drawn.wait()
            for number in range(3):
                await allocate(db, f"quick-{number}", uuids["early"], 1)
            await loader.refresh()
            assert (free(loader, uuids["early"]), free(loader, uuids["late"])) == (5, 8)
            commit.set()
            await slow
            rows = await db.fetch("SELECT change FROM resource_providers ORDER BY name")
            assert rows[1]["change"] < rows[0]["change"]
            async with asyncio.timeout(60):
                while free(loader, uuids["late"]) != 3:
                    await asyncio.sleep(0.02)
                    await loader.refresh()

    run(scenario())


def test_change_cursor_goes_back_by_overlap():
    cursor = ChangeCursor(overlap=2.0)
    assert not cursor.started
    cursor.start(1000)
    cursor.start(5)  # has no effect after the first start
    assert cursor.since(10.0) == 1000 - PAGE_SIZE  # overlapping: transactions from before the load may commit now
    cursor.advance(1010)
    assert cursor.since(10.1) == 1010  # not overlapping
    assert cursor.since(10.5) == 1000 - PAGE_SIZE
    cursor.advance(1020)
    assert cursor.since(12.0) == 1000 - PAGE_SIZE
    assert cursor.since(12.5) == 1000  # the highest at 10.0, two seconds before the last overlapping read
    assert cursor.since(13.0) == 1010
    for now in (14.0, 15.0, 16.0, 17.0):
        cursor.since(now)
    assert cursor.since(18.0) == 1020


def test_change_cursor_without_overlap_never_goes_back():
    cursor = ChangeCursor(overlap=0.0)
    cursor.start(1000)
    assert cursor.since(10.0) == 1000
    cursor.advance(900)
    cursor.advance(1001)
    assert cursor.since(20.0) == 1001


def test_reload_reads_changes_missing_from_the_sequence(database):
    async def scenario():
        async with database() as db:
            uuids = await add_hosts(db, host_facts("h1"), host_facts("h2"), host_facts("h3"))
            loader = SnapshotLoader(db, SchedulerConfig(change_overlap_seconds=0.0))
            await loader.refresh()
            async with db.transaction() as tx:  # without a number in the change sequence
                await tx.execute("UPDATE inventories SET total = 99 WHERE resource_class = 'VCPU'")
                await tx.execute("DELETE FROM hypervisors WHERE host = 'h2'")
                await tx.execute("DELETE FROM resource_providers WHERE uuid = $1", uuids["h3"])
            await loader.refresh()
            assert (len(loader.hosts), free(loader, uuids["h1"])) == (3, 8)
            await loader.reload()
            assert names(loader.hosts, loader.hosts.everywhere) == {"h1"}
            assert free(loader, uuids["h1"]) == 99

    run(scenario())


def test_deleted_host_is_removed_by_next_refresh(database):
    async def scenario():
        async with database() as db:
            uuids = await add_hosts(db, host_facts("h1"), host_facts("h2"), host_facts("h3"))
            loader = SnapshotLoader(db, SchedulerConfig(change_overlap_seconds=0.0))
            await loader.refresh()
            async with db.transaction() as tx:
                await mirror.delete_host(tx, "h3")
            await loader.refresh()
            assert names(loader.hosts, loader.hosts.everywhere) == {"h1", "h2"}
            # The last change belongs to a deleted provider. Later changes must still be read.
            async with db.transaction() as tx:
                assert await claim(tx, Consumer("c", "p", "u"), {uuids["h1"]: {"VCPU": 3}})
            await loader.refresh()
            assert free(loader, uuids["h1"]) == 5

    run(scenario())


def test_old_rows_of_departed_providers_are_purged(database, monkeypatch):
    async def scenario():
        async with database() as db:
            await add_hosts(db, *(host_facts(f"h{n}") for n in range(4)))
            highest = []
            for n, hours in enumerate((0, 0, 2, 4)):
                monkeypatch.setattr(clock, "now", lambda hours=hours: 1e9 + 3600 * hours)
                async with db.transaction() as tx:
                    await mirror.delete_host(tx, f"h{n}")
                highest.append(await db.fetch_value(f"SELECT {LAST_CHANGE}"))
            assert highest == sorted(set(highest))
            rows = await db.fetch("SELECT change FROM departed_providers")
            assert [row["change"] for row in rows] == highest[3:]

    run(scenario())


def test_stale_host_is_read_again(sqlite_url):
    async def scenario():
        async with opened(sqlite_url) as db:
            uuids = await add_hosts(db, host_facts("h1"), host_facts("h2"))
            loader = SnapshotLoader(db, SchedulerConfig(change_overlap_seconds=0.0))
            await loader.refresh()
            async with db.transaction() as tx:
                await tx.execute("DELETE FROM resource_providers WHERE uuid = $1", uuids["h1"])
            loader.mark_stale([uuids["h1"], uuids["h2"], "unknown"])
            await loader.refresh()
            assert names(loader.hosts, loader.hosts.everywhere) == {"h2"}

    run(scenario())


@pytest.mark.parametrize("number", [249, 250, 251, 600])
def test_paging_reads_every_host(sqlite_url, number):
    async def scenario():
        async with opened(sqlite_url) as db:
            await add_hosts(db, *(host_facts(f"h{n}") for n in range(number)))
            loader = SnapshotLoader(db, SchedulerConfig())
            await loader.refresh()
            assert len(loader.hosts) == number

    run(scenario())
