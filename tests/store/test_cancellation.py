"""Cancelled tasks: a transaction is complete or absent, and others are not affected."""

from __future__ import annotations

import asyncio
import random

import apsw
import pytest
import uvloop

from kilonova.store import Database
from tests.store.things import add_things, database_with_things, thing_ids
from tests.support import run


async def cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_cancel_while_waiting_for_the_writer(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with database_with_things(sqlite_url) as db:
            async with db.transaction() as tx:
                await tx.execute("INSERT INTO things (id) VALUES ('holder')")
                first, second, third = (
                    asyncio.create_task(add_things(db, ident)) for ident in ("first", "second", "third")
                )
                await asyncio.sleep(0)
                await cancel(second)
            await asyncio.gather(first, third)
            assert await thing_ids(db) == {"holder", "first", "third"}

    run(scenario())


def test_cancel_when_the_writer_is_just_free(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with database_with_things(sqlite_url) as db:
            holder = db.transaction()
            await holder.__aenter__()
            first, second = (asyncio.create_task(add_things(db, ident)) for ident in ("first", "second"))
            await asyncio.sleep(0)
            leaving = asyncio.ensure_future(holder.__aexit__(None, None, None))
            await asyncio.sleep(0)  # the connection is handed to the first, which has not run yet
            first.cancel()
            await leaving
            await asyncio.wait_for(second, 60)
            assert first.cancelled()
            assert await thing_ids(db) == {"second"}

    run(scenario())


def test_cancel_while_waiting_for_another_process(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with database_with_things(sqlite_url) as db:
            other = apsw.Connection(sqlite_url.removeprefix("sqlite://"))
            other.execute("BEGIN IMMEDIATE")
            first, second = (asyncio.create_task(add_things(db, ident)) for ident in ("first", "second"))
            await asyncio.sleep(0.02)
            await cancel(first)
            await asyncio.sleep(0.02)
            other.execute("COMMIT")
            other.close()
            await asyncio.wait_for(second, 60)
            assert await thing_ids(db) == {"second"}

    run(scenario())


def test_cancel_inside_transaction(database_url: str) -> None:
    async def sleeper(db: Database) -> None:
        async with db.transaction() as tx:
            await tx.execute("INSERT INTO things (id) VALUES ('sleeper')")
            await asyncio.sleep(60)

    async def scenario() -> None:
        async with database_with_things(database_url) as db:
            task = asyncio.create_task(sleeper(db))
            await asyncio.sleep(0.05)
            others = [asyncio.create_task(add_things(db, ident)) for ident in ("a", "b")]
            await asyncio.sleep(0)
            await cancel(task)
            await asyncio.wait_for(asyncio.gather(*others), 60)
            assert await thing_ids(db) == {"a", "b"}

    run(scenario())


def test_cancel_during_commit(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with database_with_things(sqlite_url) as db:
            tasks = [asyncio.create_task(add_things(db, ident)) for ident in ("a", "b", "c")]
            await asyncio.sleep(0)  # all bodies have run, none is committed
            assert await thing_ids(db) == set()
            await cancel(tasks[0])
            await asyncio.gather(*tasks[1:])
            assert await thing_ids(db) == {"a", "b", "c"}

    run(scenario())


def test_cancel_while_waiting_for_lock(postgresql_url: str) -> None:
    async def take_lock(db: Database) -> None:
        async with db.transaction() as tx:
            await tx.lock("key")

    async def scenario() -> None:
        async with database_with_things(postgresql_url) as db:
            async with db.transaction() as tx:
                await tx.lock("key")
                task = asyncio.create_task(take_lock(db))
                await asyncio.sleep(0.05)
                await cancel(task)
            await asyncio.wait_for(take_lock(db), 60)

    run(scenario())


class RollBack(Exception):
    """Raised inside a transaction to roll it back."""


async def insert_pair(db: Database, ident: str, pause: float | None, fails: bool) -> None:
    """Insert two rows or none, perhaps with a pause between them."""
    async with db.transaction() as tx:
        await tx.execute("INSERT INTO things (id) VALUES ($1)", f"{ident} left")
        if pause is not None:
            await asyncio.sleep(pause)
        await tx.execute("INSERT INTO things (id) VALUES ($1)", f"{ident} right")
        if fails:
            raise RollBack


async def cancel_randomly(url: str, seed: int, rounds: int, size: int) -> None:
    rng = random.Random(seed)
    done: set[str] = set()
    undone: set[str] = set()
    async with database_with_things(url) as db:
        for number in range(rounds):
            names = [f"{number}.{place}" for place in range(size)]
            tasks = {}
            for name in names:
                pause = rng.choice([None, None, None, 0, 0.001])
                tasks[name] = asyncio.create_task(insert_pair(db, name, pause, rng.random() < 0.1))
            for name in rng.sample(names, size // 2):
                await asyncio.sleep(rng.choice([0, 0, 0, 0.0005, 0.002]))
                tasks[name].cancel()
            results = await asyncio.wait_for(asyncio.gather(*tasks.values(), return_exceptions=True), 60)
            for name, result in zip(names, results, strict=True):
                if result is None:
                    done.add(name)
                elif isinstance(result, RollBack):
                    undone.add(name)
                else:
                    assert isinstance(result, asyncio.CancelledError), result
        await asyncio.wait_for(add_things(db, "last"), 60)
        rows = await thing_ids(db) - {"last"}
    halves = [{row.split()[0] for row in rows if row.endswith(side)} for side in ("left", "right")]
    assert halves[0] == halves[1]
    assert done <= halves[0]
    assert not undone & halves[0]
    assert done
    assert undone


@pytest.mark.parametrize("seed", range(6))
def test_random_cancellations(sqlite_url: str, seed: int) -> None:
    runner = asyncio.Runner(loop_factory=uvloop.new_event_loop if seed % 2 else None)
    with runner:
        runner.run(cancel_randomly(sqlite_url, seed, rounds=25, size=24))


def test_random_cancellations_on_postgresql(postgresql_url: str) -> None:
    run(cancel_randomly(postgresql_url, seed=1, rounds=6, size=24))
