"""Time in a control-plane process while the machine's clock steps, on both databases."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from kilonova import clock, clock_sync
from kilonova.clock_sync import ClockSync
from kilonova.hosts.heartbeat import Heartbeat, is_up
from kilonova.hosts.service import Service
from kilonova.identity.seed import seed, user_names
from kilonova.identity.token import SYSTEM
from kilonova.identity.token_keys import KeyFile, KeyRing
from kilonova.identity.token_provider import TokenProvider, revoke
from kilonova.operations import store as operations
from kilonova.store import Database
from tests.support.databases import opened
from tests.support.full_cloud import full_cloud
from tests.support.history import UNFINISHED, put_operation

HOUR = 3600.0
STEPS = pytest.mark.parametrize("step", [HOUR, -HOUR], ids=["forth", "back"])


@pytest.fixture(autouse=True)
def machine_clock() -> Iterator[None]:
    yield
    clock.use(None)


@asynccontextmanager
async def timed(db: Database) -> AsyncIterator[ClockSync]:
    sync = ClockSync(db, report_seconds=10.0)
    await sync.start()
    yield sync
    clock.use(None)


def step_machine_clock(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    real = time.time
    monkeypatch.setattr(clock.time, "time", lambda: real() + seconds)


async def follow(sync: ClockSync) -> None:
    """What the process does every ten seconds."""
    sync.follow(await sync._reference())


@STEPS
def test_leases_survive_a_step(database_url: str, monkeypatch: pytest.MonkeyPatch, step: float) -> None:
    async def scenario() -> None:
        async with opened(database_url) as db, timed(db) as sync:
            await put_operation(db, "work", **UNFINISHED | {"run_at": clock.now()})
            (leased,), _ = await operations.lease(db, "one", 0.5, ["boot"], 5)
            step_machine_clock(monkeypatch, step)
            await follow(sync)
            assert await operations.lease(db, "two", 0.5, ["boot"], 5) == ([], 0)
            assert await operations.renew(db, "one", 0.5, [leased.id]) == {"work": False}
            # The owner dies: the lease expires nevertheless.
            async with asyncio.timeout(30):
                while not (taken := (await operations.lease(db, "two", 0.5, ["boot"], 5))[0]):
                    await asyncio.sleep(0.05)
            assert [row.id for row in taken] == ["work"]

    asyncio.run(scenario())


@STEPS
def test_hosts_stay_up_and_work_goes_on(database_url: str, monkeypatch: pytest.MonkeyPatch, step: float) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as cloud, timed(cloud.db) as sync:
            await cloud.heartbeat.beat()
            step_machine_clock(monkeypatch, step)
            await follow(sync)
            services = Service.decode_all(await cloud.db.fetch("SELECT * FROM services"))
            assert all(is_up(service, clock.now(), 60.0) for service in services)
            await cloud.boot_active()

    asyncio.run(scenario())


@STEPS
def test_revocation_holds_and_new_logins_work(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: float
) -> None:
    async def scenario() -> None:
        async with opened(database_url) as db, timed(db) as sync:
            await seed(db, dict.fromkeys(user_names(), "secret"))
            admin = await db.fetch_value("SELECT id FROM users WHERE name = 'admin'")

            async def issue() -> str:
                issued = await tokens.issue(admin, SYSTEM, ["password"])
                assert issued is not None
                return issued[0]

            tokens = TokenProvider(db, KeyRing(KeyFile(tmp_path / "keys")))
            revoked = [await issue()]
            step_machine_clock(monkeypatch, step)
            await follow(sync)
            revoked.append(await issue())
            async with db.transaction() as tx:
                await revoke(tx, f"{SYSTEM.kind} {SYSTEM.id}", clock.now(), tokens.token_seconds)
            step_machine_clock(monkeypatch, -step)
            await follow(sync)
            assert [await tokens.look_up(token) for token in revoked] == [None, None]
            assert await tokens.look_up(await issue()) is not None

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("behind", "expected"),
    [(0.0, 0.0), (HOUR, HOUR + 10), (-HOUR, 0.0), (1000 * HOUR, 0.0)],
    ids=["on time", "set back while stopped", "stopped for an hour", "never set"],
)
def test_start_never_goes_back(database_url: str, behind: float, expected: float) -> None:
    """`behind`: how far the clock is behind the last report; `expected`: how far time is ahead of it afterwards."""

    async def scenario() -> None:
        async with opened(database_url) as db:
            await Heartbeat(db, process_host="control").beat()
            async with db.transaction() as tx:
                await tx.execute("UPDATE services SET last_seen_at = $1", time.time() + behind)
            async with timed(db):
                assert clock.now() - time.time() == pytest.approx(expected, abs=5)

    asyncio.run(scenario())


def test_process_that_was_suspended_goes_on_from_the_time_of_the_server(
    postgresql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with opened(postgresql_url) as db, timed(db) as sync:
            suspended = clock._uptime() - HOUR
            monkeypatch.setattr(clock, "_uptime", lambda: suspended)
            assert clock.now() < time.time() - HOUR + 5
            await follow(sync)
            assert clock.now() == pytest.approx(time.time(), abs=5)

    asyncio.run(scenario())


def test_clock_goes_on_while_the_database_does_not_answer(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(clock_sync, "INTERVAL_SECONDS", 0.01)
        async with opened(database_url) as db, timed(db) as sync:
            running = asyncio.create_task(sync.run())
            await db.close()
            await asyncio.sleep(0.1)
            assert not running.done()
            assert clock.now() == pytest.approx(time.time(), abs=5)
            running.cancel()

    asyncio.run(scenario())
