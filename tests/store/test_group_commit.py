"""One COMMIT for many transactions on SQLite, none of them weaker for it."""

from __future__ import annotations

import asyncio
import resource
from pathlib import Path

import apsw
import pytest

from kilonova.store import Conflict, Database, Unavailable
from kilonova.store.sqlite import SqliteDatabase
from tests.store.things import add, found, things
from tests.support import run
from tests.support.databases import opened


def writers(db: Database, idents: list[str]) -> list[asyncio.Task[None]]:
    return [asyncio.create_task(add(db, ident)) for ident in idents]


def commits_fail(db: Database, fail: bool) -> None:
    assert isinstance(db, SqliteDatabase)
    db._writing.set_commit_hook((lambda: True) if fail else None)


def test_concurrent_transactions_share_commits(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with things(sqlite_url) as db:
            before = db.commits
            idents = [str(number) for number in range(64)]
            await asyncio.gather(*writers(db, idents))
            assert db.commits - before <= 3
            assert await found(db) == set(idents)

    run(scenario())


def test_a_stream_of_transactions_cannot_put_off_the_commit(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with things(sqlite_url) as db:
            before = db.commits
            tasks = writers(db, [str(number) for number in range(300)])
            await tasks[0]
            assert not tasks[-1].done()
            await asyncio.gather(*tasks)
            assert db.commits - before == 3

    run(scenario())


def test_transactions_one_after_the_other_are_each_durable(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with things(sqlite_url) as db:
            before = db.commits
            for number in range(5):
                await add(db, str(number))
                assert str(number) in await found(db)
            assert db.commits - before == 5

    run(scenario())


def test_a_transaction_that_writes_nothing_needs_no_commit(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with things(sqlite_url) as db:
            before = db.commits
            async with db.transaction() as tx:
                assert await tx.fetch("SELECT id FROM things FOR UPDATE SKIP LOCKED") == []
            assert db.commits - before <= 1
            assert await asyncio.wait_for(db.fetch("SELECT id FROM things"), 60) == []

    run(scenario())


def test_a_rolled_back_member_leaves_the_others(sqlite_url: str) -> None:
    class Boom(Exception):
        pass

    async def fails(db: Database) -> None:
        async with db.transaction() as tx:
            await tx.execute("INSERT INTO things (id) VALUES ('lost')")
            raise Boom

    async def scenario() -> None:
        async with things(sqlite_url) as db:
            before = db.commits
            results = await asyncio.gather(add(db, "a"), fails(db), add(db, "b"), fails(db), return_exceptions=True)
            assert [type(result) for result in results] == [type(None), Boom, type(None), Boom]
            assert await found(db) == {"a", "b"}
            assert db.commits - before == 1

    run(scenario())


def test_nothing_is_visible_before_the_commit(sqlite_url: str) -> None:
    seen: list[set[str]] = []

    async def looks(db: Database) -> None:
        async with db.transaction() as tx:
            await tx.execute("INSERT INTO things (id) VALUES ('second')")
            seen.append(await found(db))
            seen.append({row["id"] for row in await tx.fetch("SELECT id FROM things")})

    async def scenario() -> None:
        async with things(sqlite_url) as db:
            await asyncio.gather(add(db, "first"), looks(db))
            assert await found(db) == {"first", "second"}

    run(scenario())
    assert seen == [set(), {"first", "second"}]


def test_a_refusal_is_told_only_when_what_it_rests_on_is_durable(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with things(sqlite_url) as db:
            first, second = writers(db, ["same", "same"])
            with pytest.raises(Conflict):
                await second
            assert await found(db) == {"same"}
            await first

    run(scenario())


def test_a_failed_commit_fails_every_member_and_nothing_else(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with things(sqlite_url) as db:
            commits_fail(db, True)
            results = await asyncio.gather(add(db, "a"), add(db, "b"), return_exceptions=True)
            assert [type(result) for result in results] == [Unavailable] * 2
            assert await found(db) == set()
            commits_fail(db, False)
            await add(db, "c")
            assert await found(db) == {"c"}

    run(scenario())


def test_a_refusal_that_rests_on_a_failed_commit_is_no_answer(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with things(sqlite_url) as db:
            commits_fail(db, True)
            results = await asyncio.gather(add(db, "same"), add(db, "same"), return_exceptions=True)
            assert [type(result) for result in results] == [Unavailable, Unavailable]

    run(scenario())


def test_a_commit_that_finds_the_disk_full(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with things(sqlite_url) as db:
            log = Path(sqlite_url.removeprefix("sqlite://") + "-wal")
            before = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (log.stat().st_size + 1000, before[1]))
            try:
                results = await asyncio.gather(add(db, "a"), add(db, "b"), return_exceptions=True)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, before)
            assert [type(result) for result in results] == [Unavailable] * 2
            assert await found(db) == set()
            await add(db, "c")
        async with opened(sqlite_url) as again:
            assert await found(again) == {"c"}

    run(scenario())


def test_a_deferred_foreign_key_fails_its_own_transaction_alone(sqlite_url: str) -> None:
    async def deferred(db: Database, *rows: tuple[str, str | None]) -> None:
        async with db.transaction() as tx:
            await tx.execute("PRAGMA defer_foreign_keys = ON")
            await tx.execute_many("INSERT INTO things (id, owner) VALUES ($1, $2)", rows)

    async def scenario() -> None:
        async with things(sqlite_url) as db:
            before = db.commits
            results = await asyncio.gather(
                add(db, "a"),
                deferred(db, ("orphan", "nobody")),
                deferred(db, ("child", "parent"), ("parent", None)),
                return_exceptions=True,
            )
            assert [type(result) for result in results] == [type(None), Conflict, type(None)]
            assert await found(db) == {"a", "child", "parent"}
            assert db.commits - before == 1

    run(scenario())


def test_a_full_disk_fails_the_whole_group(sqlite_url: str) -> None:
    async def fills(db: Database) -> None:
        async with db.transaction() as tx:
            for number in range(100):
                await tx.execute("INSERT INTO things (id, doc) VALUES ($1, $2)", f"big {number}", "x" * 10_000)

    async def scenario() -> None:
        async with things(sqlite_url) as db:
            assert isinstance(db, SqliteDatabase)
            pages = db._writing.pragma("page_count")
            db._writing.pragma("max_page_count", pages + 20)
            results = await asyncio.gather(add(db, "a"), fills(db), add(db, "b"), return_exceptions=True)
            assert [type(result) for result in results[:2]] == [Unavailable, Unavailable]
            db._writing.pragma("max_page_count", pages + 2000)
            await add(db, "c")
            assert await found(db) - {"b"} == {"c"}
            assert ("b" in await found(db)) == (results[2] is None)

    run(scenario())


def test_another_process_that_writes_is_waited_for(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with things(sqlite_url) as db:
            other = apsw.Connection(sqlite_url.removeprefix("sqlite://"))
            other.execute("BEGIN IMMEDIATE")
            task = asyncio.create_task(add(db, "a"))
            await asyncio.sleep(0.05)
            assert not task.done()
            other.execute("COMMIT")
            await asyncio.wait_for(task, 60)
            other.close()

    run(scenario())


def test_closing_lets_the_running_transaction_end_and_refuses_the_waiting(sqlite_url: str) -> None:
    async def slow(db: Database) -> None:
        async with db.transaction() as tx:
            await tx.execute("INSERT INTO things (id) VALUES ('slow')")
            await asyncio.sleep(0.05)

    async def scenario() -> None:
        async with things(sqlite_url) as db:
            running = asyncio.create_task(slow(db))
            await asyncio.sleep(0)
            (waiting,) = writers(db, ["waiting"])
            await asyncio.sleep(0)
            await db.close()
            await running
            with pytest.raises(Unavailable):
                await waiting
            with pytest.raises(Unavailable):
                await add(db, "late")
            with pytest.raises(Unavailable):
                await db.fetch("SELECT 1")
        async with opened(sqlite_url) as again:
            assert await found(again) == {"slow"}

    run(scenario())
