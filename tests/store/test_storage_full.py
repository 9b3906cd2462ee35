"""The database's disk is full: writes fail as a whole, reads go on, and writes work again when there is space."""

from __future__ import annotations

import asyncio
import math

import pytest
from asyncpg import exceptions as pg

from kilonova.store import Database, StorageFull, Unavailable
from kilonova.store.postgres_errors import translate_error
from kilonova.store.sqlite import SqliteDatabase
from tests.store.things import add_things, database_with_things, thing_ids
from tests.support import run

LARGE = "x" * 200_000


def limit_pages(db: Database, limited: bool) -> None:
    assert isinstance(db, SqliteDatabase)
    (used,) = db._write_connection.execute("PRAGMA page_count").fetchone()
    db._write_connection.execute(f"PRAGMA max_page_count = {used if limited else 10**9}")


def test_write_on_a_full_disk_changes_nothing_and_works_later(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with database_with_things(sqlite_url) as db:
            await add_things(db, "before")
            assert db.last_full_at == -math.inf
            limit_pages(db, True)
            results = await asyncio.gather(
                *(add_things(db, f"{number} {LARGE}") for number in range(3)), return_exceptions=True
            )
            assert all(isinstance(result, StorageFull) for result in results)
            assert await thing_ids(db) == {"before"}
            assert db.last_full_at > 0
            limit_pages(db, False)
            await add_things(db, "after")
            assert await thing_ids(db) == {"before", "after"}
            assert db.last_full_at == -math.inf

    run(scenario())


@pytest.mark.parametrize(
    ("error", "expected"), [(pg.DiskFullError("no space"), StorageFull), (pg.OutOfMemoryError("no"), Unavailable)]
)
def test_full_disk_of_postgresql_is_named(error: Exception, expected: type[Exception]) -> None:
    assert type(translate_error(error, False)) is expected
