"""A task may be cancelled at any await: its transaction is wholly there or wholly not, and nobody else notices."""

from __future__ import annotations

import asyncio
import random

import apsw
import pytest
import uvloop

from kilonova.store import Database
from tests.store.things import add, found, things
from tests.support import run


async def cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_while_waiting_for_the_turn(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with things(sqlite_url) as db:
            async with db.transaction() as tx:
                await tx.execute("INSERT INTO things (id) VALUES ('holder')")
                first, second, third = (asyncio.create_task(add(db, ident)) for ident in ("first", "second", "third"))
                await asyncio.sleep(0)
                await cancelled(second)
            await asyncio.gather(first, third)
            assert await found(db) == {"holder", "first", "third"}

    run(scenario())


def test_when_the_turn_has_just_come(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with things(sqlite_url) as db:
            holder = db.transaction()
            await holder.__aenter__()
            first, second = (asyncio.create_task(add(db, ident)) for ident in ("first", "second"))
            await asyncio.sleep(0)
            leaving = asyncio.ensure_future(holder.__aexit__(None, None, None))
            await asyncio.sleep(0)  # the turn is handed to the first, which has not run yet
            first.cancel()
            await leaving
            await asyncio.wait_for(second, 60)
            assert first.cancelled()
            assert await found(db) == {"second"}

    run(scenario())


def test_while_waiting_for_another_process(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with things(sqlite_url) as db:
            other = apsw.Connection(sqlite_url.removeprefix("sqlite://"))
            other.execute("BEGIN IMMEDIATE")
            first, second = (asyncio.create_task(add(db, ident)) for ident in ("first", "second"))
            await asyncio.sleep(0.02)
            await cancelled(first)
            await asyncio.sleep(0.02)
            other.execute("COMMIT")
            other.close()
            await asyncio.wait_for(second, 60)
            assert await found(db) == {"second"}

    run(scenario())


def test_inside_the_body(database_url: str) -> None:
    async def sleeper(db: Database) -> None:
        async with db.transaction() as tx:
            await tx.execute("INSERT INTO things (id) VALUES ('sleeper')")
            await asyncio.sleep(60)

    async def scenario() -> None:
        async with things(database_url) as db:
            task = asyncio.create_task(sleeper(db))
            await asyncio.sleep(0.05)
            others = [asyncio.create_task(add(db, ident)) for ident in ("a", "b")]
            await asyncio.sleep(0)
            await cancelled(task)
            await asyncio.wait_for(asyncio.gather(*others), 60)
            assert await found(db) == {"a", "b"}

    run(scenario())


def test_while_the_commit_is_under_way(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with things(sqlite_url) as db:
            tasks = [asyncio.create_task(add(db, ident)) for ident in ("a", "b", "c")]
            await asyncio.sleep(0)  # all bodies have run, none is committed
            assert await found(db) == set()
            await cancelled(tasks[0])
            await asyncio.gather(*tasks[1:])
            assert await found(db) == {"a", "b", "c"}

    run(scenario())


def test_while_waiting_for_a_lock_of_another(postgresql_url: str) -> None:
    async def waits(db: Database) -> None:
        async with db.transaction() as tx:
            await tx.hold("key")

    async def scenario() -> None:
        async with things(postgresql_url) as db:
            async with db.transaction() as tx:
                await tx.hold("key")
                task = asyncio.create_task(waits(db))
                await asyncio.sleep(0.05)
                await cancelled(task)
            await asyncio.wait_for(waits(db), 60)

    run(scenario())


class Changed(Exception):
    """Raised by a body that wants its transaction undone."""


async def pair(db: Database, ident: str, pause: float | None, fails: bool) -> None:
    """Two rows or none, with a pause somewhere or nowhere."""
    async with db.transaction() as tx:
        await tx.execute("INSERT INTO things (id) VALUES ($1)", f"{ident} left")
        if pause is not None:
            await asyncio.sleep(pause)
        await tx.execute("INSERT INTO things (id) VALUES ($1)", f"{ident} right")
        if fails:
            raise Changed


async def storm(url: str, seed: int, rounds: int, size: int) -> None:
    chance = random.Random(seed)
    done: set[str] = set()
    undone: set[str] = set()
    async with things(url) as db:
        for number in range(rounds):
            names = [f"{number}.{place}" for place in range(size)]
            tasks = {}
            for name in names:
                pause = chance.choice([None, None, None, 0, 0.001])
                tasks[name] = asyncio.create_task(pair(db, name, pause, chance.random() < 0.1))
            for name in chance.sample(names, size // 2):
                await asyncio.sleep(chance.choice([0, 0, 0, 0.0005, 0.002]))
                tasks[name].cancel()
            results = await asyncio.wait_for(asyncio.gather(*tasks.values(), return_exceptions=True), 60)
            for name, result in zip(names, results, strict=True):
                if result is None:
                    done.add(name)
                elif isinstance(result, Changed):
                    undone.add(name)
                else:
                    assert isinstance(result, asyncio.CancelledError), result
        await asyncio.wait_for(add(db, "last"), 60)
        rows = await found(db) - {"last"}
    halves = [{row.split()[0] for row in rows if row.endswith(side)} for side in ("left", "right")]
    assert halves[0] == halves[1]
    assert done <= halves[0]
    assert not undone & halves[0]
    assert done
    assert undone


@pytest.mark.parametrize("seed", range(6))
def test_a_storm_of_cancellations(sqlite_url: str, seed: int) -> None:
    runner = asyncio.Runner(loop_factory=uvloop.new_event_loop if seed % 2 else None)
    with runner:
        runner.run(storm(sqlite_url, seed, rounds=25, size=24))


def test_a_storm_of_cancellations_on_postgresql(postgresql_url: str) -> None:
    run(storm(postgresql_url, seed=1, rounds=6, size=24))
