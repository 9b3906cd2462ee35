"""Registration and heartbeats, for a thousand hosts, on both databases."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from kilonova import clock
from kilonova.hosts.drivers.sim.rules import Rules
from kilonova.hosts.drivers.sim.shapes import Shapes, load
from kilonova.hosts.drivers.sim.store import SimStore, Size
from kilonova.hosts.embedded import EmbeddedConfig, EmbeddedHosts
from kilonova.hosts.heartbeat import Heartbeat, is_up
from kilonova.hosts.messages import HostFacts
from kilonova.hosts.registry import register
from kilonova.placement import mirror
from kilonova.store import Database, Row, Transaction, Unavailable
from tests.hosts.support import until
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


def cut_off(directory: Path, host: str | None) -> None:
    """Cuts the host off, or nobody any more."""
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
    rows = await db.fetch("SELECT * FROM services")
    return {(row["host"], row["program"]): is_up(row, clock.now()) for row in rows}


async def all_up(db: Database) -> bool:
    return all((await up(db)).values())


class Failing:
    """A database that is in trouble for a number of transactions."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self.troubles = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        if self.troubles:
            self.troubles -= 1
            raise Unavailable("busy")
        async with self._db.transaction() as tx:
            yield tx


class Spied:
    """A database that writes down the statements its transactions run."""

    def __init__(self, db: Database, kind: type[SpiedTransaction] | None = None) -> None:
        self._db = db
        self._kind = kind or SpiedTransaction
        self.statements: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        async with self._db.transaction() as tx:
            yield self._kind(tx, self.statements)

    def writes(self) -> list[str]:
        return [sql for sql in self.statements if not sql.lstrip().upper().startswith("SELECT")]


class SpiedTransaction:
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


def test_a_thousand_hosts_are_registered(database: Open, tmp_path: Path) -> None:
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


def test_a_restart_with_the_same_hosts_writes_nothing(database: Open, tmp_path: Path) -> None:
    async def scenario() -> None:
        hosts = await facts(tmp_path, 50)
        async with database() as db:
            first = await register(db, hosts, process_host="box")
            spied = Spied(db)
            assert await register(spied, hosts, process_host="box") == first
            assert spied.statements
            assert spied.writes() == []

    run(scenario())


def test_only_what_changed_is_written_and_uuids_stay(database: Open, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with database() as db:
            await register(db, await facts(tmp_path, 3))
            before = {row["host"]: row for row in await db.fetch("SELECT * FROM hypervisors")}
            bigger = await facts(tmp_path, 4, Size(vcpus=64, memory_mb=131072, disk_gb=2048))
            await register(db, [bigger[1], bigger[3]])
            after = {row["host"]: row for row in await db.fetch("SELECT * FROM hypervisors")}
            assert after["sim-001"] == before["sim-001"], "a host that is not served any more is left alone"
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


def test_an_operators_word_outlives_a_restart(database: Open, tmp_path: Path) -> None:
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


def test_one_statement_reports_for_all_but_the_silent(database: Open, tmp_path: Path) -> None:
    async def scenario() -> None:
        with served(tmp_path, 3) as hosts:
            async with database() as db:
                spied = Spied(db)
                heartbeat = Heartbeat(spied, hosts, process_host="sim-002")
                assert await heartbeat.beat() == 5
                await age(db)
                cut_off(tmp_path, "sim-002")
                spied.statements.clear()
                assert await heartbeat.beat() == 4
                assert len(spied.statements) == 1
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


def test_a_host_that_was_cut_off_at_the_start_comes_in_later(database: Open, tmp_path: Path) -> None:
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


def test_a_process_without_hosts_reports_itself(database: Open) -> None:
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


def test_a_database_in_trouble_costs_a_beat_and_no_more(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with opened(sqlite_url) as db:
            failing = Failing(db)
            heartbeat = Heartbeat(failing, process_host="worker-1", interval=0.01)
            await heartbeat.beat()
            await age(db)
            failing.troubles = 2
            beating = asyncio.create_task(heartbeat.run())
            await until(lambda: all_up(db))
            assert failing.troubles == 0
            beating.cancel()

    run(scenario())


def test_when_a_host_booted_is_known_and_no_change(database: Open, tmp_path: Path) -> None:
    async def scenario() -> None:
        hosts = await facts(tmp_path, 2)
        asked = "SELECT booted_at, updated_at FROM hypervisors ORDER BY host"
        async with database() as db:
            await register(db, hosts)
            made = await db.fetch(asked)
            assert [row["booted_at"] for row in made] == [facts.booted_at for facts in hosts]
            assert all(clock.now() - 60 < row["booted_at"] <= clock.now() for row in made)
            untold = [msgspec.structs.replace(hosts[0], booted_at=None)]
            inexact = [msgspec.structs.replace(hosts[1], booted_at=made[1]["booted_at"] + 2)]
            spied = Spied(db)
            await register(spied, untold + inexact)
            assert spied.writes() == []
            before = await db.fetch("SELECT change, generation FROM resource_providers")
            await register(db, [msgspec.structs.replace(hosts[1], booted_at=made[1]["booted_at"] + 3600)])
            assert await db.fetch(asked) == [made[0], {**made[1], "booted_at": made[1]["booted_at"] + 3600}]
            assert await db.fetch("SELECT change, generation FROM resource_providers") == before

    run(scenario())


def test_a_host_takes_over_the_provider_that_waits_for_it(database: Open, tmp_path: Path) -> None:
    """One that an operator made before the host came, or that outlived the host's service."""

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


def test_a_host_whose_service_was_deleted_comes_back_as_new(database: Open, tmp_path: Path) -> None:
    async def scenario() -> None:
        shapes = load(EXAMPLES / "shared-disk.yaml")
        hosts = await facts(tmp_path, 1, shapes=shapes)
        async with database() as db:
            await register(db, hosts)
            before = await placement(db)
            async with db.transaction() as tx:
                for host in ("sim-001", "sim-002", "sim-003"):
                    await mirror.host_deleted(tx, host)
                    await tx.execute("DELETE FROM hypervisors WHERE host = $1", host)
                    await tx.execute("DELETE FROM services WHERE host = $1", host)
            assert {name for name, *_ in await placement(db)} == {"sim-004"}, "the shared disk went with its last host"
            await register(db, hosts)
            assert await placement(db) == before

    run(scenario())


def test_a_host_that_tells_nonsense_keeps_no_other_out(database: Open, tmp_path: Path) -> None:
    async def scenario() -> None:
        good, bad = await facts(tmp_path, 2)
        async with database() as db:
            services = await register(db, [good, msgspec.structs.replace(bad, traits=["fast"])])
            assert [service.host for service in services] == [good.host]
            assert await db.fetch("SELECT host FROM hypervisors") == [{"host": good.host}]

    run(scenario())


async def placement(db: Database) -> set[tuple[object, ...]]:
    """Everything hosts have, by names."""
    found: set[tuple[object, ...]] = set()
    for columns, table in (
        ("x.resource_class, x.total, x.own_ratio", "inventories"),
        ("x.trait, x.reported", "provider_traits"),
        ("x.aggregate_uuid, x.reported", "provider_aggregates"),
    ):
        sql = f"SELECT p.name, {columns} FROM resource_providers p JOIN {table} x ON x.provider_id = p.id"
        found |= {tuple(row.values()) for row in await db.fetch(sql)}
    return found


def test_a_kill_while_hosts_are_registered_leaves_nothing_half(database_url: str, tmp_path: Path) -> None:
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


# Kills itself after as many writes of the registration.
_KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from kilonova.hosts.registry import register
from kilonova.placement import mirror
from tests.hosts.test_registry import EXAMPLES, SpiedTransaction, Spied, facts, load
from tests.support.databases import opened

class Deadly(SpiedTransaction):
    async def execute_many(self, sql, rows):
        await super().execute_many(sql, rows)
        writes.append(sql)
        if len(writes) == int(sys.argv[3]):
            os.kill(os.getpid(), signal.SIGKILL)

async def main():
    Path(sys.argv[2]).mkdir(exist_ok=True)
    hosts = await facts(Path(sys.argv[2]), 1, shapes=load(EXAMPLES / "shared-disk.yaml"))
    async with opened(sys.argv[1]) as db:
        await register(Spied(db, Deadly), hosts)

writes = []
asyncio.run(main())
"""


def test_who_counts_as_up() -> None:
    row = {"forced_down": False, "last_seen_at": 1000.0}
    assert is_up(row, 1060.0)
    assert not is_up(row, 1060.1)
    assert not is_up(row, 1005.0, down_time=4)
    assert not is_up(row | {"forced_down": True}, 1000.0)
