"""Registration of hosts and services."""

from __future__ import annotations

import signal
import subprocess
import sys
import uuid as uuids
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kilonova import clock
from kilonova.hosts import registry
from kilonova.hosts.drivers.sim.shapes import Shapes, load
from kilonova.hosts.drivers.sim.store import Size
from kilonova.hosts.embedded import EmbeddedConfig, EmbeddedHosts
from kilonova.hosts.heartbeat import Heartbeat
from kilonova.hosts.messages import HostFacts, Inventory, NestedProvider, SharingProvider
from kilonova.hosts.registry import register
from kilonova.placement import mirror
from kilonova.store import Database, Row, Transaction
from tests.support import run
from tests.support.databases import opened

EXAMPLES = Path(__file__).parents[2] / "examples" / "host-shapes"
Open = Callable[[], AbstractAsyncContextManager[Database]]


async def facts(directory: Path, number: int, size: Size = Size(), *, shapes: Shapes = Shapes()) -> list[HostFacts]:
    hosts = EmbeddedHosts(EmbeddedConfig(directory=directory, hosts=number, size=size, shapes=shapes))
    try:
        return await hosts.facts(hosts.names)
    finally:
        hosts.close()


@contextmanager
def served(directory: Path, number: int) -> Iterator[EmbeddedHosts]:
    hosts = EmbeddedHosts(EmbeddedConfig(directory=directory, hosts=number))
    try:
        yield hosts
    finally:
        hosts.close()


class RecordingDatabase:
    """A database that records the statements of its transactions."""

    def __init__(self, db: Database, kind: type[RecordingTransaction] | None = None) -> None:
        self._db = db
        self._kind = kind or RecordingTransaction
        self.statements: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        async with self._db.transaction() as tx:
            yield self._kind(tx, self.statements)

    def writes(self) -> list[str]:
        return [sql for sql in self.statements if not sql.lstrip().upper().startswith("SELECT")]


class RecordingTransaction:
    def __init__(self, tx: Transaction, statements: list[str]) -> None:
        self._tx = tx
        self._statements = statements

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tx, name)

    async def fetch(self, sql: str, *args: Any) -> list[Row]:
        self._statements.append(sql)
        return await self._tx.fetch(sql, *args)

    async def execute(self, sql: str, *args: Any) -> int:
        self._statements.append(sql)
        return await self._tx.execute(sql, *args)

    async def execute_many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        self._statements.append(sql)
        await self._tx.execute_many(sql, rows)


def test_register_thousand_hosts(database: Open, tmp_path: Path) -> None:
    async def scenario() -> None:
        hosts = await facts(tmp_path, 1000)
        async with database() as db:
            services = await register(db, hosts, process_host="box")
            assert len(services) == 1002
            assert await db.fetch_value("SELECT count(*) FROM services") == 1002
            rows = await db.fetch("SELECT h.*, p.name FROM hypervisors h JOIN resource_providers p ON p.uuid = h.uuid")
            assert {row["name"] for row in rows} == {host.host for host in hosts}
            assert len({row["service_id"] for row in rows}) == 1000
            inventories = "SELECT count(*) FROM inventories WHERE resource_class = 'VCPU' AND total = 32"
            assert await db.fetch_value(inventories) == 1000

    run(scenario())


def test_unchanged_hosts_are_not_written(database: Open, tmp_path: Path) -> None:
    async def scenario() -> None:
        hosts = await facts(tmp_path, 50)
        async with database() as db:
            first = await register(db, hosts, process_host="box")
            recording = RecordingDatabase(db)
            assert await register(recording, hosts, process_host="box") == first
            assert recording.statements
            assert recording.writes() == []

    run(scenario())


def test_changed_hosts_are_updated_and_keep_uuids(database: Open, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with database() as db:
            await register(db, await facts(tmp_path, 3))
            before = {row["host"]: row for row in await db.fetch("SELECT * FROM hypervisors")}
            bigger = await facts(tmp_path, 4, Size(vcpus=64, memory_mb=131072, disk_gb=2048))
            await register(db, [bigger[1], bigger[3]])
            after = {row["host"]: row for row in await db.fetch("SELECT * FROM hypervisors")}
            assert after["sim-001"] == before["sim-001"], "a host that is no longer served is unchanged"
            assert after["sim-002"]["uuid"] == before["sim-002"]["uuid"]
            assert after["sim-002"]["updated_at"] is not None
            assert '"cores":64' in after["sim-002"]["cpu_info"]
            assert set(after) == {"sim-001", "sim-002", "sim-003", "sim-004"}
            vcpus = await db.fetch(
                "SELECT p.name, i.total FROM inventories i JOIN resource_providers p ON p.id = i.provider_id"
                " WHERE i.resource_class = 'VCPU' ORDER BY p.name"
            )
            assert [row["total"] for row in vcpus] == [32, 64, 32, 64]

    run(scenario())


def test_disabled_service_stays_disabled_after_restart(database: Open, tmp_path: Path) -> None:
    async def scenario() -> None:
        hosts = await facts(tmp_path, 2)
        async with database() as db:
            await register(db, hosts)
            async with db.transaction() as tx:
                await tx.execute("UPDATE services SET disabled = TRUE, disabled_reason = 'fan'")
            with served(tmp_path, 2) as hosts_again:
                await Heartbeat(db, hosts_again).beat()
            rows = await db.fetch("SELECT disabled, disabled_reason FROM services")
            assert rows == [{"disabled": True, "disabled_reason": "fan"}] * 2

    run(scenario())


def test_boot_time_is_recorded_without_provider_change(database: Open, tmp_path: Path) -> None:
    async def scenario() -> None:
        hosts = await facts(tmp_path, 2)
        sql = "SELECT booted_at, updated_at FROM hypervisors ORDER BY host"
        async with database() as db:
            await register(db, hosts)
            stored = await db.fetch(sql)
            assert [row["booted_at"] for row in stored] == [facts.booted_at for facts in hosts]
            assert all(clock.now() - 60 < row["booted_at"] <= clock.now() for row in stored)
            unreported = [msgspec.structs.replace(hosts[0], booted_at=None)]
            inexact = [msgspec.structs.replace(hosts[1], booted_at=stored[1]["booted_at"] + 2)]
            recording = RecordingDatabase(db)
            await register(recording, unreported + inexact)
            assert recording.writes() == []
            before = await db.fetch("SELECT change, generation FROM resource_providers")
            await register(db, [msgspec.structs.replace(hosts[1], booted_at=stored[1]["booted_at"] + 3600)])
            assert await db.fetch(sql) == [stored[0], {**stored[1], "booted_at": stored[1]["booted_at"] + 3600}]
            assert await db.fetch("SELECT change, generation FROM resource_providers") == before

    run(scenario())


def test_host_takes_over_unused_provider_of_its_name(database: Open, tmp_path: Path) -> None:
    """An operator created the provider in advance, or the deleted service of the host left it."""

    async def scenario() -> None:
        hosts = await facts(tmp_path, 2)
        async with database() as db:
            async with db.transaction() as tx:
                await tx.execute(
                    "INSERT INTO resource_providers (uuid, name, generation, change, facts, created_at, updated_at)"
                    " VALUES ('early', 'sim-001', 0, 1, 1, 0, 0)"
                )
                await tx.execute("UPDATE resource_providers SET root_id = id")
            await register(db, hosts)
            rows = await db.fetch(
                "SELECT h.host, p.uuid, p.reported FROM hypervisors h JOIN resource_providers p ON p.uuid = h.uuid"
            )
            assert {row["host"] for row in rows if row["reported"]} == {"sim-001", "sim-002"}
            assert next(row["uuid"] for row in rows if row["host"] == "sim-001") == "early"

    run(scenario())


def test_host_with_deleted_service_registers_again(database: Open, tmp_path: Path) -> None:
    async def scenario() -> None:
        shapes = load(EXAMPLES / "shared-disk.yaml")
        hosts = await facts(tmp_path, 1, shapes=shapes)
        async with database() as db:
            await register(db, hosts)
            before = await placement(db)
            async with db.transaction() as tx:
                for host in ("sim-001", "sim-002", "sim-003"):
                    await mirror.delete_host(tx, host)
                    await tx.execute("DELETE FROM hypervisors WHERE host = $1", host)
                    await tx.execute("DELETE FROM services WHERE host = $1", host)
            assert {name for name, *_ in await placement(db)} == {"sim-004"}, (
                "the shared disk is deleted with its last host"
            )
            await register(db, hosts)
            assert await placement(db) == before

    run(scenario())


def test_host_with_invalid_facts_is_skipped(database: Open, tmp_path: Path) -> None:
    async def scenario() -> None:
        good, bad = await facts(tmp_path, 2)
        async with database() as db:
            services = await register(db, [good, msgspec.structs.replace(bad, traits=["fast"])])
            assert [service.host for service in services] == [good.host]
            assert await db.fetch("SELECT host FROM hypervisors") == [{"host": good.host}]

    run(scenario())


async def placement(db: Database) -> set[tuple[object, ...]]:
    """Inventories, traits and aggregates of all providers, by name."""
    found: set[tuple[object, ...]] = set()
    for columns, table in (
        ("x.resource_class, x.total, x.own_ratio", "inventories"),
        ("x.trait, x.reported", "provider_traits"),
        ("x.aggregate_uuid, x.reported", "provider_aggregates"),
    ):
        sql = f"SELECT p.name, {columns} FROM resource_providers p JOIN {table} x ON x.provider_id = p.id"
        found |= {tuple(row.values()) for row in await db.fetch(sql)}
    return found


def test_registration_is_atomic_when_killed(database_url: str, tmp_path: Path) -> None:
    tables = ("services", "hypervisors", "resource_providers", "inventories", "provider_traits", "provider_aggregates")

    async def counts(db: Database) -> list[int]:
        return [await db.fetch_value(f"SELECT COUNT(*) FROM {table}") for table in tables]

    async def scenario() -> None:
        async with opened(database_url) as db:
            assert await counts(db) == [0] * 6
        hosts = await facts(tmp_path, 1, shapes=load(EXAMPLES / "shared-disk.yaml"))
        async with opened(database_url) as db:
            await register(db, hosts)
            assert (await counts(db))[:3] == [4, 4, 5]

    for statement in (2, 5, 8):
        program = [sys.executable, "-c", _KILLED, database_url, str(tmp_path / "killed"), str(statement)]
        done = subprocess.run(program, capture_output=True, text=True)
        assert done.returncode == -signal.SIGKILL, done.stderr
    run(scenario())


# Kills itself after the given number of writes.
_KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from kilonova.hosts import registry
from kilonova.hosts.registry import register
from kilonova.placement import mirror
from tests.hosts.test_registry import EXAMPLES, RecordingDatabase, RecordingTransaction, facts, load
from tests.support.databases import opened

class KillingTransaction(RecordingTransaction):
    async def execute_many(self, sql, rows):
        await super().execute_many(sql, rows)
        writes.append(sql)
        if len(writes) == int(sys.argv[3]):
            os.kill(os.getpid(), signal.SIGKILL)

async def main():
    Path(sys.argv[2]).mkdir(exist_ok=True)
    hosts = await facts(Path(sys.argv[2]), 1, shapes=load(EXAMPLES / "shared-disk.yaml"))
    async with opened(sys.argv[1]) as db:
        await register(RecordingDatabase(db, KillingTransaction), hosts)

writes = []
asyncio.run(main())
"""


HOSTILE_FACTS: list[dict[str, Any]] = [
    {"hypervisor_version": 2**63},
    {"hypervisor_version": -1},
    {"agent_version": 2**31},
    {"host_ip": "10.0.0.1\0"},
    {"host_ip": "\ud800"},
    {"hypervisor_type": "q" * 256},
    {"booted_at": float("nan")},
    {"booted_at": float("inf")},
    {"cpu_info": {"model": 2**70}},
    {"cpu_info": {"model": "\0"}},
    {"cpu_info": {"model": "m" * 70000}},
]


@pytest.mark.parametrize("hostile", HOSTILE_FACTS, ids=lambda changes: next(iter(changes)))
def test_host_with_facts_that_cannot_be_stored_stops_no_other_host(
    database: Open, tmp_path: Path, hostile: dict[str, Any]
) -> None:
    async def scenario() -> None:
        first, bad, last = await facts(tmp_path, 3)
        async with database() as db:
            services = await register(db, [first, msgspec.structs.replace(bad, **hostile), last], process_host="ctl")
            assert {service.host for service in services} == {first.host, last.host, "ctl"}

    run(scenario())


@pytest.mark.parametrize("is_new", [True, False], ids=["new", "registered"])
def test_host_with_the_hypervisor_name_of_another_host_changes_nothing(
    database: Open, tmp_path: Path, is_new: bool
) -> None:
    async def scenario() -> None:
        victim, attacker, last = await facts(tmp_path, 3)
        async with database() as db:
            await register(db, [victim] if is_new else [victim, attacker])
            before = await db.fetch("SELECT * FROM hypervisors ORDER BY host"), await placement(db)
            forged = msgspec.structs.replace(attacker, hypervisor_hostname=victim.hypervisor_hostname)
            assert await register(db, [forged]) == []
            assert (await db.fetch("SELECT * FROM hypervisors ORDER BY host"), await placement(db)) == before
            services = await register(db, [forged, last])
            assert [service.host for service in services] == [last.host]

    run(scenario())


def test_host_cannot_report_the_provider_of_another_host(database: Open, tmp_path: Path) -> None:
    async def scenario() -> None:
        victim, attacker = await facts(tmp_path, 2)
        nested = NestedProvider(name="numa0", inventory={"VCPU": Inventory(total=4, max_unit=4)})
        async with database() as db:
            await register(db, [msgspec.structs.replace(victim, nested=[nested]), attacker])
            before = await placement(db)
            uuid = await db.fetch_value("SELECT uuid FROM hypervisors WHERE host = $1", victim.host)
            inventory = {"VCPU": Inventory(total=4000, max_unit=4000)}
            # Nested and sharing providers have uuids that are derived from their names.
            forged = SharingProvider(name=f"{uuid}/numa0", aggregate=str(uuids.uuid4()), inventory=inventory)
            assert await register(db, [msgspec.structs.replace(attacker, sharing=[forged])]) == []
            # The name of the other host's own provider.
            named = msgspec.structs.replace(forged, name=victim.hypervisor_hostname)
            await register(db, [msgspec.structs.replace(attacker, sharing=[named])])
            after = await placement(db)
            assert {row for row in after if row[0].startswith(victim.hypervisor_hostname)} == {
                row for row in before if row[0].startswith(victim.hypervisor_hostname)
            }

    run(scenario())


def test_hosts_are_registered_one_by_one_if_the_database_refuses_the_batch(
    database: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        first, bad, last = await facts(tmp_path, 3)
        async with database() as db:
            monkeypatch.setattr(registry, "_facts_error", lambda facts: None)
            hostile = msgspec.structs.replace(bad, host_ip="10.0.0.1\0")
            services = await register(db, [first, hostile, last], process_host="ctl")
            assert {service.host for service in services} == {first.host, last.host, "ctl"}

    run(scenario())
