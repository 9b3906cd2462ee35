"""Group commit on SQLite: one COMMIT for many transactions, with the guarantees of separate ones."""

from __future__ import annotations

import asyncio
import resource
from pathlib import Path

import apsw
import pytest

from kilonova.store import Conflict, Database, StorageFull, Unavailable
from kilonova.store.sqlite import SqliteDatabase
from tests.store.things import add_things, database_with_things, thing_ids
from tests.support import run
from tests.support.databases import opened


def writers(db: Database, idents: list[str]) -> list[asyncio.Task[None]]:
    return [asyncio.create_task(add_things(db, ident)) for ident in idents]


def set_commits_fail(db: Database, fail: bool) -> None:
    assert isinstance(db, SqliteDatabase)
    db._write_connection.set_commit_hook((lambda: True) if fail else None)


def test_concurrent_transactions_share_commits(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with database_with_things(sqlite_url) as db:
            before = db.commits
            idents = [str(number) for number in range(64)]
            await asyncio.gather(*writers(db, idents))
            assert db.commits - before <= 3
            assert await thing_ids(db) == set(idents)

    run(scenario())


def test_stream_of_transactions_cannot_delay_commit(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with database_with_things(sqlite_url) as db:
            before = db.commits
            tasks = writers(db, [str(number) for number in range(300)])
            await tasks[0]
            assert not tasks[-1].done()
            await asyncio.gather(*tasks)
            assert db.commits - before == 3

    run(scenario())


def test_sequential_transactions_are_each_durable(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with database_with_things(sqlite_url) as db:
            before = db.commits
            for number in range(5):
                await add_things(db, str(number))
                assert str(number) in await thing_ids(db)
            assert db.commits - before == 5

    run(scenario())


def test_transaction_without_writes_needs_no_commit(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with database_with_things(sqlite_url) as db:
            before = db.commits
            async with db.transaction() as tx:
                assert await tx.fetch("SELECT id FROM things FOR UPDATE SKIP LOCKED") == []
            assert db.commits - before <= 1
            assert await asyncio.wait_for(db.fetch("SELECT id FROM things"), 60) == []

    run(scenario())


def test_rollback_of_one_member_keeps_the_others(sqlite_url: str) -> None:
    class Interruption(Exception):
        pass

    async def fails(db: Database) -> None:
        async with db.transaction() as tx:
            await tx.execute("INSERT INTO things (id) VALUES ('lost')")
            raise Interruption

    async def scenario() -> None:
        async with database_with_things(sqlite_url) as db:
            before = db.commits
            results = await asyncio.gather(
                add_things(db, "a"), fails(db), add_things(db, "b"), fails(db), return_exceptions=True
            )
            assert [type(result) for result in results] == [type(None), Interruption, type(None), Interruption]
            assert await thing_ids(db) == {"a", "b"}
            assert db.commits - before == 1

    run(scenario())


def test_writes_are_invisible_before_commit(sqlite_url: str) -> None:
    seen: list[set[str]] = []

    async def read_uncommitted(db: Database) -> None:
        async with db.transaction() as tx:
            await tx.execute("INSERT INTO things (id) VALUES ('second')")
            seen.append(await thing_ids(db))
            seen.append({row["id"] for row in await tx.fetch("SELECT id FROM things")})

    async def scenario() -> None:
        async with database_with_things(sqlite_url) as db:
            await asyncio.gather(add_things(db, "first"), read_uncommitted(db))
            assert await thing_ids(db) == {"first", "second"}

    run(scenario())
    assert seen == [set(), {"first", "second"}]


def test_conflict_is_reported_after_the_other_member_is_durable(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with database_with_things(sqlite_url) as db:
            first, second = writers(db, ["same", "same"])
            with pytest.raises(Conflict):
                await second
            assert await thing_ids(db) == {"same"}
            await first

    run(scenario())


def test_failed_commit_fails_all_members(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with database_with_things(sqlite_url) as db:
            set_commits_fail(db, True)
            results = await asyncio.gather(add_things(db, "a"), add_things(db, "b"), return_exceptions=True)
            assert [type(result) for result in results] == [Unavailable] * 2
            assert await thing_ids(db) == set()
            set_commits_fail(db, False)
            await add_things(db, "c")
            assert await thing_ids(db) == {"c"}

    run(scenario())


def test_conflict_with_failed_member_is_unavailable(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with database_with_things(sqlite_url) as db:
            set_commits_fail(db, True)
            results = await asyncio.gather(add_things(db, "same"), add_things(db, "same"), return_exceptions=True)
            assert [type(result) for result in results] == [Unavailable, Unavailable]

    run(scenario())


def test_full_disk_at_commit(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with database_with_things(sqlite_url) as db:
            log = Path(sqlite_url.removeprefix("sqlite://") + "-wal")
            before = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (log.stat().st_size + 1000, before[1]))
            try:
                results = await asyncio.gather(add_things(db, "a"), add_things(db, "b"), return_exceptions=True)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, before)
            assert [type(result) for result in results] == [Unavailable] * 2
            assert await thing_ids(db) == set()
            await add_things(db, "c")
        async with opened(sqlite_url) as again:
            assert await thing_ids(again) == {"c"}

    run(scenario())


def test_deferred_foreign_key_fails_only_its_transaction(sqlite_url: str) -> None:
    async def deferred(db: Database, *rows: tuple[str, str | None]) -> None:
        async with db.transaction() as tx:
            await tx.execute("PRAGMA defer_foreign_keys = ON")
            await tx.execute_many("INSERT INTO things (id, owner) VALUES ($1, $2)", rows)

    async def scenario() -> None:
        async with database_with_things(sqlite_url) as db:
            before = db.commits
            results = await asyncio.gather(
                add_things(db, "a"),
                deferred(db, ("orphan", "nobody")),
                deferred(db, ("child", "parent"), ("parent", None)),
                return_exceptions=True,
            )
            assert [type(result) for result in results] == [type(None), Conflict, type(None)]
            assert await thing_ids(db) == {"a", "child", "parent"}
            assert db.commits - before == 1

    run(scenario())


def test_full_disk_in_statement_fails_the_group(sqlite_url: str) -> None:
    async def fill_disk(db: Database) -> None:
        async with db.transaction() as tx:
            for number in range(100):
                await tx.execute("INSERT INTO things (id, doc) VALUES ($1, $2)", f"big {number}", "x" * 10_000)

    async def scenario() -> None:
        async with database_with_things(sqlite_url) as db:
            assert isinstance(db, SqliteDatabase)
            pages = db._write_connection.pragma("page_count")
            db._write_connection.pragma("max_page_count", pages + 20)
            results = await asyncio.gather(
                add_things(db, "a"), fill_disk(db), add_things(db, "b"), return_exceptions=True
            )
            assert [type(result) for result in results[:2]] == [StorageFull, StorageFull]
            db._write_connection.pragma("max_page_count", pages + 2000)
            await add_things(db, "c")
            assert await thing_ids(db) - {"b"} == {"c"}
            assert ("b" in await thing_ids(db)) == (results[2] is None)

    run(scenario())


def test_writer_waits_for_another_process(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with database_with_things(sqlite_url) as db:
            other = apsw.Connection(sqlite_url.removeprefix("sqlite://"))
            other.execute("BEGIN IMMEDIATE")
            task = asyncio.create_task(add_things(db, "a"))
            await asyncio.sleep(0.05)
            assert not task.done()
            other.execute("COMMIT")
            await asyncio.wait_for(task, 60)
            other.close()

    run(scenario())


def test_close_finishes_running_and_refuses_waiting_transactions(sqlite_url: str) -> None:
    async def slow(db: Database) -> None:
        async with db.transaction() as tx:
            await tx.execute("INSERT INTO things (id) VALUES ('slow')")
            await asyncio.sleep(0.05)

    async def scenario() -> None:
        async with database_with_things(sqlite_url) as db:
            running = asyncio.create_task(slow(db))
            await asyncio.sleep(0)
            (waiting,) = writers(db, ["waiting"])
            await asyncio.sleep(0)
            await db.close()
            await running
            with pytest.raises(Unavailable):
                await waiting
            with pytest.raises(Unavailable):
                await add_things(db, "late")
            with pytest.raises(Unavailable):
                await db.fetch("SELECT 1")
        async with opened(sqlite_url) as again:
            assert await thing_ids(again) == {"slow"}

    run(scenario())
