"""Heartbeats register the hosts of a process and report their services as up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from msgspec import structs

from kilonova import clock
from kilonova.hosts.drivers.sim.facts import Hardware, host_facts
from kilonova.hosts.drivers.sim.rules import Rules
from kilonova.hosts.drivers.sim.store import SimStore, Size
from kilonova.hosts.heartbeat import Heartbeat, is_up
from kilonova.hosts.messages import Report
from kilonova.hosts.remote import RemoteHosts
from kilonova.hosts.service import Service
from kilonova.store import Database, Transaction, Unavailable
from tests.hosts.support import until
from tests.hosts.test_registry import Open, RecordingDatabase, served
from tests.hosts.test_remote import Broker
from tests.support import run
from tests.support.databases import opened


def cut_off(directory: Path, host: str | None) -> None:
    """Cut the host off; None: clear all rules."""
    store = SimStore(directory / "sim.db")
    if host is None:
        Rules(store).clear()
    else:
        Rules(store).add_failure(host, "*", "unreachable", None, None)
    store.close()


async def age(db: Database) -> None:
    async with db.transaction() as tx:
        await tx.execute("UPDATE services SET last_seen_at = last_seen_at - 1000")


async def up(db: Database) -> dict[tuple[str, str], bool]:
    services = Service.decode_all(await db.fetch("SELECT * FROM services"))
    return {(service.host, service.program): is_up(service, clock.now()) for service in services}


async def all_up(db: Database) -> bool:
    return all((await up(db)).values())


class FailingDatabase:
    """A database whose next transactions fail."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self.failures = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        if self.failures:
            self.failures -= 1
            raise Unavailable("busy")
        async with self._db.transaction() as tx:
            yield tx


def test_one_statement_reports_all_reachable_hosts(database: Open, tmp_path: Path) -> None:
    async def scenario() -> None:
        with served(tmp_path, 3) as hosts:
            async with database() as db:
                recording = RecordingDatabase(db)
                heartbeat = Heartbeat(recording, hosts, process_host="sim-002")
                assert await heartbeat.beat() == 5
                await age(db)
                cut_off(tmp_path, "sim-002")
                recording.statements.clear()
                assert await heartbeat.beat() == 4
                assert len(recording.statements) == 1
                assert await up(db) == {
                    ("sim-001", "nova-compute"): True,
                    ("sim-002", "nova-compute"): False,
                    ("sim-003", "nova-compute"): True,
                    ("sim-002", "nova-conductor"): True,
                    ("sim-002", "nova-scheduler"): True,
                }
                counts = await db.fetch(
                    "SELECT report_count FROM services WHERE program = 'nova-compute' ORDER BY host"
                )
                assert [row["report_count"] for row in counts] == [2, 1, 2]

    run(scenario())


def test_host_unreachable_at_start_is_registered_later(database: Open, tmp_path: Path) -> None:
    async def scenario() -> None:
        with served(tmp_path, 2) as hosts:
            cut_off(tmp_path, "sim-002")
            async with database() as db:
                heartbeat = Heartbeat(db, hosts, process_host="box")
                await heartbeat.beat()
                assert ("sim-002", "nova-compute") not in await up(db)
                cut_off(tmp_path, None)
                await heartbeat.beat()
                assert (await up(db))["sim-002", "nova-compute"]

    run(scenario())


def test_process_without_hosts_reports_its_own_services(database: Open) -> None:
    async def scenario() -> None:
        async with database() as db:
            heartbeat = Heartbeat(db, process_host="worker-1", interval=0.01)
            await heartbeat.beat()
            await age(db)
            beating = asyncio.create_task(heartbeat.run())
            await until(lambda: all_up(db))
            assert set(await up(db)) == {("worker-1", "nova-conductor"), ("worker-1", "nova-scheduler")}
            beating.cancel()

    run(scenario())


def test_heartbeat_continues_after_database_error(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with opened(sqlite_url) as db:
            failing = FailingDatabase(db)
            heartbeat = Heartbeat(failing, process_host="worker-1", interval=0.01)
            await heartbeat.beat()
            await age(db)
            failing.failures = 2
            beating = asyncio.create_task(heartbeat.run())
            await until(lambda: all_up(db))
            assert failing.failures == 0
            beating.cancel()

    run(scenario())


def test_is_up_considers_age_and_forced_down() -> None:
    service = Service(1, "uuid", "host", "nova-compute", False, None, False, 1000.0, 1, 1, 1000.0, None)
    assert is_up(service, 1060.0)
    assert not is_up(service, 1060.1)
    assert not is_up(service, 1005.0, down_seconds=4)
    assert not is_up(structs.replace(service, forced_down=True), 1000.0)


def test_heartbeat_registers_reporting_hosts_and_changed_facts(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as db:
            broker = Broker("a", "b")
            hosts = RemoteHosts(broker, report_seconds=600)
            heartbeat = Heartbeat(db, hosts, interval=60)
            hosts.on_change = heartbeat.wake
            running = asyncio.create_task(heartbeat.run())

            async def memory(host: str) -> int | None:
                sql = (
                    "SELECT i.total FROM inventories i JOIN resource_providers p ON p.id = i.provider_id"
                    " WHERE p.name = $1 AND i.resource_class = 'MEMORY_MB'"
                )
                total: int | None = await db.fetch_value(sql, host)
                return total

            hosts.receive_report(Report(host="a", boot="1"))
            await until(lambda: _is(memory("a"), Hardware().size.memory_mb))
            assert await memory("b") is None
            broker.facts["a"] = host_facts("a", Hardware(Size(memory_mb=7777)))
            hosts.receive_report(Report(host="a", boot="2"))
            hosts.receive_report(Report(host="b", boot="1"))
            await until(lambda: _is(memory("a"), 7777))
            await until(lambda: _is(memory("b"), Hardware().size.memory_mb))
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    run(scenario())


def test_hanging_host_does_not_delay_heartbeat_of_others(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with opened(sqlite_url) as db:
            broker = Broker("a", "b")
            hosts = RemoteHosts(broker, report_seconds=600)
            heartbeat = Heartbeat(db, hosts, interval=0.02)
            hosts.on_change = heartbeat.wake
            running = asyncio.create_task(heartbeat.run())

            async def beats(host: str) -> int:
                return await db.fetch_value("SELECT report_count FROM services WHERE host = $1", host) or 0

            async def is_hanging() -> bool:
                return "b" in broker.calls

            hosts.receive_report(Report(host="a", boot="1"))
            await until(lambda: _at_least(beats("a"), 2))
            broker.hanging = "b"
            hosts.receive_report(Report(host="b", boot="1"))
            await until(is_hanging)
            before = await beats("a")
            await until(lambda: _at_least(beats("a"), before + 8))
            assert await beats("b") == 0
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    run(scenario())


async def _at_least(asked: Any, number: int) -> bool:
    return bool(await asked >= number)


async def _is(asked: Any, expected: object) -> bool:
    return bool(await asked == expected)
