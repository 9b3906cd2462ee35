"""Keyset pagination: all pages together are the sorted list, with ties and nulls, on both databases."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from kilonova.store import Database, Row
from kilonova.store.paging import Page, SortKey
from tests.store.things import add_things, database_with_things
from tests.support import run

ORDERS = [
    [],
    [SortKey("id", descending=True)],
    [SortKey("n")],
    [SortKey("n", descending=True)],
    [SortKey("doc", nullable=False), SortKey("n", descending=True)],
    [SortKey("doc", descending=True, nullable=False)],
    [SortKey("doc", nullable=False)],
    [SortKey("ok"), SortKey("n"), SortKey("doc", nullable=False)],
    [SortKey("ok", descending=True), SortKey("at"), SortKey("n", descending=True), SortKey("ok")],
]


def rows(seed: int = 3) -> list[Row]:
    rng = random.Random(seed)
    return [
        {
            "id": f"{number:03d}",
            "ok": rng.choice([True, False, None]),
            "n": rng.choice([None, 1, 2]),
            "at": rng.choice([None, 0.5, 1.5]),
            "doc": rng.choice("ab") + ("" if rng.random() < 0.5 else str(number)),
        }
        for number in range(40)
    ]


def sorted_ids(data: list[Row], sort: list[SortKey]) -> list[str]:
    def null_first(value: Any) -> tuple[bool, Any]:
        return (value is not None, value or 0) if not isinstance(value, str) else (True, value)

    ordered = sorted(data, key=lambda row: row["id"], reverse=bool(sort) and sort[-1].descending)
    for key in reversed(sort):
        ordered.sort(key=lambda row: null_first(row[key.column]), reverse=key.descending)
    return [row["id"] for row in ordered]


async def fetch_all_pages(db: Database, sort: list[SortKey], limit: int, **options: Any) -> list[str]:
    """The ids of all pages, in order."""
    marker: Row | None = options.pop("marker", None)
    idents: list[str] = []
    while True:
        page = Page(sort, marker=marker, limit=limit, first_argument=2, **options)
        found = await db.fetch(
            f"SELECT t.* FROM paged t WHERE id <> $1 AND {page.where} {page.order}", "", *page.arguments
        )
        idents += [row["id"] for row in found]
        if len(found) < limit:
            return idents
        marker = found[-1]


async def fill(db: Database, data: list[Row]) -> None:
    async with db.transaction() as tx:
        await tx.execute("CREATE TABLE paged (id TEXT, ok BOOLEAN, n BIGINT, at DOUBLE PRECISION, doc TEXT)")
        await tx.execute_many("INSERT INTO paged VALUES ($1, $2, $3, $4, $5)", [list(row.values()) for row in data])


def test_all_pages_are_the_sorted_list(database_url: str) -> None:
    async def scenario() -> None:
        async with database_with_things(database_url) as db:
            data = rows()
            await fill(db, data)
            for sort, limit in itertools.product(ORDERS, (1, 3, 7)):
                seen = await fetch_all_pages(db, sort, limit)
                assert seen == sorted_ids(data, sort), sort

    run(scenario())


def test_backwards_pages(database_url: str) -> None:
    async def scenario() -> None:
        async with database_with_things(database_url) as db:
            data = rows()
            await fill(db, data)
            for sort in ORDERS:
                forward = await fetch_all_pages(db, sort, 5)
                last = next(row for row in data if row["id"] == forward[-1])
                assert await fetch_all_pages(db, sort, 4, marker=last, backwards=True) == forward[-2::-1]

    run(scenario())


def test_page_continues_after_deleted_marker(database_url: str) -> None:
    async def scenario() -> None:
        async with database_with_things(database_url) as db:
            await add_things(db, "a", "b", "c")
            marker = await db.fetch_one("SELECT * FROM things WHERE id = 'b'")
            async with db.transaction() as tx:
                await tx.execute("DELETE FROM things WHERE id = 'b'")
                await tx.execute("INSERT INTO things (id) VALUES ('aa')")
            page = Page([SortKey("n")], marker=marker)
            assert await db.fetch(f"SELECT id FROM things WHERE {page.where} {page.order}", *page.arguments) == [
                {"id": "c"}
            ]

    run(scenario())


def test_qualified_columns(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with database_with_things(sqlite_url) as db:
            await add_things(db, "a", "b")
            page = Page([SortKey("t.n")], marker={"n": None, "id": "a"}, ident="t.id")
            sql = f"SELECT t.id FROM things t WHERE {page.where} {page.order}"
            assert await db.fetch(sql, *page.arguments) == [{"id": "b"}]

    run(scenario())


def test_keys_without_nulls_use_row_comparison() -> None:
    sort = [SortKey("created_at", descending=True, nullable=False)]
    page = Page(sort, marker={"created_at": 1.5, "id": "x"}, limit=10, first_argument=3)
    assert page.where == "(created_at, id) < ($3, $4)"
    assert page.order == "ORDER BY created_at DESC, id DESC LIMIT $5"
    assert page.arguments == [1.5, "x", 10]


@pytest.mark.parametrize("column", ["name; DROP TABLE things", "lower(name)", "", "a.b.c", "1"])
def test_sort_key_must_be_a_column(column: str) -> None:
    with pytest.raises(ValueError, match="not a column"):
        Page([SortKey(column)])


def test_null_in_marker_of_not_nullable_key_is_refused() -> None:
    with pytest.raises(ValueError, match="null"):
        Page([SortKey("name", nullable=False)], marker={"name": None, "id": "a"})
