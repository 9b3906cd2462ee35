"""Pages put together are the whole list in order, with ties and nulls, on both databases."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from kilonova.store import Database, Row
from kilonova.store.paging import Page, SortKey
from tests.store.things import add, things
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
    chance = random.Random(seed)
    return [
        {
            "id": f"{number:03d}",
            "ok": chance.choice([True, False, None]),
            "n": chance.choice([None, 1, 2]),
            "at": chance.choice([None, 0.5, 1.5]),
            "doc": chance.choice("ab") + ("" if chance.random() < 0.5 else str(number)),
        }
        for number in range(40)
    ]


def in_order(data: list[Row], sort: list[SortKey]) -> list[str]:
    def least_first(value: Any) -> tuple[bool, Any]:
        return (value is not None, value or 0) if not isinstance(value, str) else (True, value)

    ordered = sorted(data, key=lambda row: row["id"], reverse=bool(sort) and sort[-1].descending)
    for key in reversed(sort):
        ordered.sort(key=lambda row: least_first(row[key.column]), reverse=key.descending)
    return [row["id"] for row in ordered]


async def turned(db: Database, sort: list[SortKey], limit: int, **options: Any) -> list[str]:
    """The ids of all pages."""
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


def test_all_pages_are_the_whole_list(database_url: str) -> None:
    async def scenario() -> None:
        async with things(database_url) as db:
            data = rows()
            await fill(db, data)
            for sort, limit in itertools.product(ORDERS, (1, 3, 7)):
                seen = await turned(db, sort, limit)
                assert seen == in_order(data, sort), sort

    run(scenario())


def test_backwards_from_the_end(database_url: str) -> None:
    async def scenario() -> None:
        async with things(database_url) as db:
            data = rows()
            await fill(db, data)
            for sort in ORDERS:
                forward = await turned(db, sort, 5)
                last = next(row for row in data if row["id"] == forward[-1])
                assert await turned(db, sort, 4, marker=last, backwards=True) == forward[-2::-1]

    run(scenario())


def test_a_page_goes_on_where_its_marker_was_though_the_row_is_gone(database_url: str) -> None:
    async def scenario() -> None:
        async with things(database_url) as db:
            await add(db, "a", "b", "c")
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
        async with things(sqlite_url) as db:
            await add(db, "a", "b")
            page = Page([SortKey("t.n")], marker={"n": None, "id": "a"}, ident="t.id")
            sql = f"SELECT t.id FROM things t WHERE {page.where} {page.order}"
            assert await db.fetch(sql, *page.arguments) == [{"id": "b"}]

    run(scenario())


def test_a_plain_comparison_where_an_index_can_serve() -> None:
    sort = [SortKey("created_at", descending=True, nullable=False)]
    page = Page(sort, marker={"created_at": 1.5, "id": "x"}, limit=10, first_argument=3)
    assert page.where == "(created_at, id) < ($3, $4)"
    assert page.order == "ORDER BY created_at DESC, id DESC LIMIT $5"
    assert page.arguments == [1.5, "x", 10]


@pytest.mark.parametrize("column", ["name; DROP TABLE things", "lower(name)", "", "a.b.c", "1"])
def test_only_columns_are_sorted_by(column: str) -> None:
    with pytest.raises(ValueError, match="not a column"):
        Page([SortKey(column)])


def test_a_marker_without_a_value_that_must_be_there() -> None:
    with pytest.raises(ValueError, match="null"):
        Page([SortKey("name", nullable=False)], marker={"name": None, "id": "a"})
