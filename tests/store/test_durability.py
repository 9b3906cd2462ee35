"""What was acknowledged is there, whatever dies."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kilonova.store import Database, Unavailable
from tests.store.things import THINGS, add, found, things
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


async def make_things(url: str) -> None:
    async with opened(url) as db:
        async with db.transaction() as tx:
            await tx.execute(THINGS)


@pytest.mark.parametrize("acknowledged", [1, 50, 400])
def test_a_killed_writer_loses_nothing_it_acknowledged(database_url: str, acknowledged: int) -> None:
    run(make_things(database_url))
    writer = subprocess.Popen([sys.executable, "-c", WRITER, database_url], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert writer.stdout is not None
    seen = [writer.stdout.readline().strip() for _ in range(acknowledged)]
    writer.send_signal(signal.SIGKILL)
    # What it said between our reading and its death counts too, but for a line cut short.
    seen += [line.strip() for line in writer.stdout if line.endswith("\n")]
    writer.wait()

    async def check() -> None:
        async with opened(database_url) as db:
            rows = await found(db)
            left = {row.removesuffix(" left") for row in rows if row.endswith(" left")}
            right = {row.removesuffix(" right") for row in rows if row.endswith(" right")}
            assert left == right
            assert len(seen) >= acknowledged
            assert set(seen) <= left
            await add(db, "afterwards")

    run(check())


def test_the_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with things(f"sqlite://{tmp_path}/new/kilonova.db"):
            modes = [path.stat().st_mode & 0o777 for path in (tmp_path / "new").iterdir()]
            assert set(modes) == {0o600}

    run(scenario())


def test_a_restart_of_postgresql_is_survived(postgresql_server: PostgresServer, postgresql_url: str) -> None:
    async def broken_off(db: Database, begun: asyncio.Event, go_on: asyncio.Event) -> None:
        async with db.transaction() as tx:
            await tx.execute("INSERT INTO things (id) VALUES ('broken off')")
            begun.set()
            await go_on.wait()
            await tx.execute("INSERT INTO things (id) VALUES ('more')")

    async def scenario() -> None:
        async with things(postgresql_url) as db:
            await asyncio.gather(*(add(db, str(number)) for number in range(5)))
            woken = asyncio.Event()
            db.listen("channel", woken.set)
            begun, go_on = asyncio.Event(), asyncio.Event()
            task = asyncio.create_task(broken_off(db, begun, go_on))
            await begun.wait()
            postgresql_server.restart()
            go_on.set()
            with pytest.raises(Unavailable):
                await task
            assert await found(db) == {"0", "1", "2", "3", "4"}
            await asyncio.gather(*(add(db, f"after {number}") for number in range(5)))
            assert len(await found(db)) == 10
            # Whatever was missed meanwhile: the listener is told to look.
            await asyncio.wait_for(woken.wait(), 60)
            woken.clear()
            async with db.transaction() as tx:
                tx.wake("channel")
            await asyncio.wait_for(woken.wait(), 60)

    run(scenario())


def test_connections_cut_while_idle_are_replaced(postgresql_server: PostgresServer, postgresql_url: str) -> None:
    async def scenario() -> None:
        async with things(postgresql_url) as db:
            await asyncio.gather(*(add(db, str(number)) for number in range(5)))
            others = "pid <> pg_backend_pid() AND datname IS NOT NULL"
            # They are gone when it returns: one that still begins a transaction would be cut in it.
            cut = f"SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE {others}"
            await asyncio.to_thread(postgresql_server.run, cut)
            await asyncio.gather(*(add(db, f"after {number}") for number in range(5)))
            assert len(await found(db)) == 10

    run(scenario())


def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    async def scenario() -> None:
        with pytest.raises(Unavailable):
            async with opened(f"postgresql://kilonova@/none?host={tmp_path}"):
                pass

    run(scenario())


def test_a_deadlock_is_passing_trouble(postgresql_url: str) -> None:
    async def cross(db: Database, first: str, second: str, barrier: asyncio.Barrier) -> None:
        async with db.transaction() as tx:
            await tx.execute("UPDATE things SET n = 1 WHERE id = $1", first)
            await barrier.wait()
            await tx.execute("UPDATE things SET n = 1 WHERE id = $1", second)

    async def scenario() -> None:
        async with things(postgresql_url) as db:
            await add(db, "a", "b")
            barrier = asyncio.Barrier(2)
            crossing = [cross(db, "a", "b", barrier), cross(db, "b", "a", barrier)]
            results = await asyncio.gather(*crossing, return_exceptions=True)
            assert sorted(type(result).__name__ for result in results) == ["NoneType", "Unavailable"]

    run(scenario())


def test_more_transactions_than_connections(postgresql_url: str) -> None:
    async def scenario() -> None:
        pids = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> ALL($1)"
        async with opened(postgresql_url) as before:
            others = [row["pid"] for row in await before.fetch(pids, [])]  # may take a moment to end
        async with things(postgresql_url) as db:
            await asyncio.gather(*(add(db, str(number)) for number in range(100)))
            assert len(await found(db)) == 100
            assert len(await db.fetch(pids, others)) <= 11

    run(scenario())
