"""Acknowledged transactions survive killed processes and restarted servers."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kilonova.store import Database, Unavailable
from tests.store.things import CREATE_THINGS, add_things, database_with_things, thing_ids
from tests.support import run
from tests.support.databases import PostgresServer, opened

ROOT = Path(__file__).parents[2]

WRITER = """
import asyncio, sys
from kilonova.store import open_database

async def write(db, lane):
    for number in range(100000):
        ident = f"{lane}.{number}"
        async with db.transaction() as tx:
            await tx.execute("INSERT INTO things (id) VALUES ($1)", ident + " left")
            await tx.execute("INSERT INTO things (id) VALUES ($1)", ident + " right")
        print(ident, flush=True)

async def main():
    db = await open_database(sys.argv[1])
    await asyncio.gather(*(write(db, lane) for lane in range(8)))

asyncio.run(main())
"""


async def create_things(url: str) -> None:
    async with opened(url) as db:
        async with db.transaction() as tx:
            await tx.execute(CREATE_THINGS)


@pytest.mark.parametrize("acknowledged", [1, 50, 400])
def test_killed_writer_keeps_acknowledged_transactions(database_url: str, acknowledged: int) -> None:
    run(create_things(database_url))
    writer = subprocess.Popen([sys.executable, "-c", WRITER, database_url], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert writer.stdout is not None
    seen = [writer.stdout.readline().strip() for _ in range(acknowledged)]
    writer.send_signal(signal.SIGKILL)
    # Lines printed before its death count too, except for an incomplete one.
    seen += [line.strip() for line in writer.stdout if line.endswith("\n")]
    writer.wait()

    async def check() -> None:
        async with opened(database_url) as db:
            rows = await thing_ids(db)
            left = {row.removesuffix(" left") for row in rows if row.endswith(" left")}
            right = {row.removesuffix(" right") for row in rows if row.endswith(" right")}
            assert left == right
            assert len(seen) >= acknowledged
            assert set(seen) <= left
            await add_things(db, "afterwards")

    run(check())


def test_file_is_readable_by_owner_only(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with database_with_things(f"sqlite://{tmp_path}/new/kilonova.db"):
            modes = [path.stat().st_mode & 0o777 for path in (tmp_path / "new").iterdir()]
            assert set(modes) == {0o600}

    run(scenario())


def test_restart_of_postgresql(postgresql_server: PostgresServer, postgresql_url: str) -> None:
    async def interrupted(db: Database, begun: asyncio.Event, go_on: asyncio.Event) -> None:
        async with db.transaction() as tx:
            await tx.execute("INSERT INTO things (id) VALUES ('broken off')")
            begun.set()
            await go_on.wait()
            await tx.execute("INSERT INTO things (id) VALUES ('more')")

    async def scenario() -> None:
        async with database_with_things(postgresql_url) as db:
            await asyncio.gather(*(add_things(db, str(number)) for number in range(5)))
            notified = asyncio.Event()
            db.listen("channel", notified.set)
            begun, go_on = asyncio.Event(), asyncio.Event()
            task = asyncio.create_task(interrupted(db, begun, go_on))
            await begun.wait()
            postgresql_server.restart()
            go_on.set()
            with pytest.raises(Unavailable):
                await task
            assert await thing_ids(db) == {"0", "1", "2", "3", "4"}
            await asyncio.gather(*(add_things(db, f"after {number}") for number in range(5)))
            assert len(await thing_ids(db)) == 10
            # The listener is called after a reconnect, because notifications may have been lost.
            await asyncio.wait_for(notified.wait(), 60)
            notified.clear()
            async with db.transaction() as tx:
                tx.notify("channel")
            await asyncio.wait_for(notified.wait(), 60)

    run(scenario())


def test_closed_idle_connections_are_replaced(postgresql_server: PostgresServer, postgresql_url: str) -> None:
    async def scenario() -> None:
        async with database_with_things(postgresql_url) as db:
            await asyncio.gather(*(add_things(db, str(number)) for number in range(5)))
            others = "pid <> pg_backend_pid() AND datname IS NOT NULL"
            # It returns when the connections are closed, so that none is closed inside a transaction.
            terminate = f"SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE {others}"
            await asyncio.to_thread(postgresql_server.run, terminate)
            await asyncio.gather(*(add_things(db, f"after {number}") for number in range(5)))
            assert len(await thing_ids(db)) == 10

    run(scenario())


def test_missing_server_is_unavailable(tmp_path: Path) -> None:
    async def scenario() -> None:
        with pytest.raises(Unavailable):
            async with opened(f"postgresql://kilonova@/none?host={tmp_path}"):
                pass

    run(scenario())


def test_deadlock_is_unavailable(postgresql_url: str) -> None:
    async def update_both(db: Database, first: str, second: str, barrier: asyncio.Barrier) -> None:
        async with db.transaction() as tx:
            await tx.execute("UPDATE things SET n = 1 WHERE id = $1", first)
            await barrier.wait()
            await tx.execute("UPDATE things SET n = 1 WHERE id = $1", second)

    async def scenario() -> None:
        async with database_with_things(postgresql_url) as db:
            await add_things(db, "a", "b")
            barrier = asyncio.Barrier(2)
            conflicting = [update_both(db, "a", "b", barrier), update_both(db, "b", "a", barrier)]
            results = await asyncio.gather(*conflicting, return_exceptions=True)
            assert sorted(type(result).__name__ for result in results) == ["NoneType", "Unavailable"]

    run(scenario())


def test_more_transactions_than_pool_size(postgresql_url: str) -> None:
    async def scenario() -> None:
        pids = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> ALL($1)"
        async with opened(postgresql_url) as before:
            others = [row["pid"] for row in await before.fetch(pids, [])]  # may take a moment to end
        async with database_with_things(postgresql_url) as db:
            await asyncio.gather(*(add_things(db, str(number)) for number in range(100)))
            assert len(await thing_ids(db)) == 100
            assert len(await db.fetch(pids, others)) <= 11

    run(scenario())
