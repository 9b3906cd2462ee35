"""SQLite and PostgreSQL behave in the same way behind the interface."""

from __future__ import annotations

import asyncio
import traceback
from typing import Any

import pytest

from kilonova.store import Conflict, Invalid, StoreError
from tests.store.things import add_things, database_with_things, thing_ids
from tests.support import run
from tests.support.databases import opened

INSERT = "INSERT INTO things (id, ok, n, at, doc) VALUES ($1, $2, $3, $4, $5)"


@pytest.mark.parametrize(
    "values",
    [
        (True, 0, 0.0, ""),
        (False, 2**63 - 1, 1e300, "ünïcode \U0001f4a5 'quoted' $1 ?"),
        (None, -(2**63), -0.5, '{"a": [1, null]}'),
        (None, None, None, None),
        (True, 7, 1767322245.123456, "line\nbreak\ttab\\"),
    ],
)
def test_values_are_returned_unchanged(database_url: str, values: tuple[Any, ...]) -> None:
    async def scenario() -> None:
        async with database_with_things(database_url) as db:
            async with db.transaction() as tx:
                assert await tx.execute(INSERT, "x", *values) == 1
                inside = await tx.fetch_one("SELECT * FROM things")
            expected = dict(zip(("id", "ok", "n", "at", "doc", "owner"), ("x", *values, None), strict=True))
            for row in (inside, *await db.fetch("SELECT * FROM things"), await db.fetch_one("SELECT * FROM things")):
                assert row == expected
                assert {name: type(value) for name, value in row.items()} == {
                    name: type(value) for name, value in expected.items()
                }

    run(scenario())


def test_integer_in_time_column_becomes_float(database_url: str) -> None:
    async def scenario() -> None:
        async with database_with_things(database_url) as db:
            async with db.transaction() as tx:
                await tx.execute("INSERT INTO things (id, at) VALUES ('x', $1)", 5)
            assert repr(await db.fetch_value("SELECT at FROM things")) == "5.0"

    run(scenario())


@pytest.mark.parametrize(
    "sql, args, expected",
    [
        ("SELECT id FROM things WHERE id = ANY($1) ORDER BY id", [["a", "c", "zz"]], [{"id": "a"}, {"id": "c"}]),
        ("SELECT id FROM things WHERE id = ANY($1)", [[]], []),
        ("SELECT id FROM things WHERE n = ANY($1) AND id <> $2", [[1, 2], "a"], [{"id": "b"}]),
        ("SELECT id FROM things WHERE id <> ALL($1) ORDER BY id DESC", [["a", "b"]], [{"id": "d"}, {"id": "c"}]),
        ("SELECT id FROM things WHERE id = ANY(CAST($1 AS TEXT[]))", [("b",)], [{"id": "b"}]),
        ("SELECT id FROM things WHERE n = 1 FOR UPDATE SKIP LOCKED", [], [{"id": "a"}]),
        ("SELECT t.id FROM things t WHERE t.n = 1 FOR NO KEY UPDATE OF t NOWAIT", [], [{"id": "a"}]),
        ("SELECT count(*) AS n, sum(n) AS total, avg(n) AS mean FROM things", [], [{"n": 4, "total": 6, "mean": 2.0}]),
        ("SELECT sum(at) AS total, min(n) AS least FROM things", [], [{"total": 3.0, "least": 1}]),
        ("SELECT CAST(n > 2 AS BOOLEAN) AS big FROM things WHERE id = $1", ["c"], [{"big": True}]),
        ("SELECT CAST(EXISTS (SELECT 1 FROM things) AS BOOLEAN) AS any", [], [{"any": True}]),
        ("SELECT ok AS yes FROM (SELECT ok FROM things WHERE id = 'a') AS inner_one", [], [{"yes": True}]),
        ("WITH one AS (SELECT ok, id FROM things) SELECT ok FROM one WHERE id = 'b'", [], [{"ok": False}]),
        ("SELECT id FROM things WHERE ok", [], [{"id": "a"}]),
        ("SELECT id FROM things WHERE ok IS NOT DISTINCT FROM FALSE", [], [{"id": "b"}]),
        ("SELECT id FROM things WHERE doc LIKE 'M%' ORDER BY id", [], [{"id": "b"}]),
        ("SELECT id FROM things WHERE doc LIKE $1 ESCAPE '\\'", ["50\\%%"], [{"id": "c"}]),
        ("SELECT id FROM things WHERE doc ~ $1 ORDER BY id", ["^[mM]ay(be)?$"], [{"id": "a"}, {"id": "b"}]),
        ("SELECT id FROM things WHERE doc !~ $1 ORDER BY id", ["^[mM]"], [{"id": "c"}, {"id": "d"}]),
        ("SELECT greatest(n, 2, NULL) AS g, least(n, 2) AS l FROM things WHERE id = 'c'", [], [{"g": 3, "l": 2}]),
        ("SELECT doc FROM things ORDER BY doc LIMIT $1", [2], [{"doc": "50% off"}, {"doc": "Maybe"}]),
        (
            "SELECT '= ANY($1) FOR UPDATE' AS text, $1 || '' AS arg",
            ["x"],
            [{"text": "= ANY($1) FOR UPDATE", "arg": "x"}],
        ),
        ("SELECT id, rank() OVER (ORDER BY at DESC) AS place FROM things WHERE n = 1", [], [{"id": "a", "place": 1}]),
        ("SELECT string_agg(id, ',') AS ids FROM things WHERE n = 1", [], [{"ids": "a"}]),
        ("SELECT count(*) FILTER (WHERE n > 1) AS more FROM things", [], [{"more": 2}]),
        ("SELECT (n, id) > ($1, $2) AS x FROM things WHERE FALSE", [1, "a"], []),
    ],
)
def test_common_sql(database_url: str, sql: str, args: list[Any], expected: list[dict[str, Any]]) -> None:
    async def scenario() -> None:
        async with database_with_things(database_url) as db:
            async with db.transaction() as tx:
                await tx.execute_many(
                    INSERT,
                    [
                        ("a", True, 1, 0.5, "may"),
                        ("b", False, 2, 1.0, "Maybe"),
                        ("c", None, 3, 1.5, "50% off"),
                        ("d", None, None, None, "é"),
                    ],
                )
                rows = await tx.fetch(sql, *args)
            assert rows == expected
            assert repr(rows) == repr(expected)

    run(scenario())


def test_text_is_sorted_by_code_points(database_url: str) -> None:
    async def scenario() -> None:
        async with database_with_things(database_url) as db:
            async with db.transaction() as tx:
                # In a column of the schema, with any locale.
                for name in ("b", "A", "é", "a", "Z", "_", "\U0001f4a5", "zz"):
                    await tx.execute(
                        "INSERT INTO domains (id, name, description, enabled, extra) VALUES ($1, $1, '', TRUE, '')",
                        name,
                    )
            names = [row["name"] for row in await db.fetch("SELECT name FROM domains ORDER BY name")]
            assert names == sorted(names)

    run(scenario())


def test_number_of_changed_rows(database_url: str) -> None:
    async def scenario() -> None:
        async with database_with_things(database_url) as db:
            async with db.transaction() as tx:
                assert await tx.execute("INSERT INTO things (id) VALUES ('a'), ('b'), ('c')") == 3
                assert await tx.execute("INSERT INTO things (id) VALUES ('a') ON CONFLICT DO NOTHING") == 0
                assert await tx.execute("UPDATE things SET n = 1 WHERE id <> $1", "a") == 2
                assert await tx.execute("SELECT id FROM things") == 0
                assert await tx.execute("UPDATE things SET n = 1 WHERE id = 'none'") == 0
                upsert = "INSERT INTO things (id, n) VALUES ($1, 9) ON CONFLICT (id) DO UPDATE SET n = excluded.n"
                assert await tx.execute(upsert, "a") == 1
                deleted = await tx.fetch("DELETE FROM things WHERE n = 1 RETURNING id, ok")
                assert sorted(row["id"] for row in deleted) == ["b", "c"]
                assert await tx.fetch_one("UPDATE things SET ok = TRUE RETURNING ok, n") == {"ok": True, "n": 9}
                assert await tx.fetch_value("SELECT id FROM things") == "a"
                assert await tx.fetch_value("SELECT id FROM things WHERE FALSE") is None
                assert await tx.fetch_one("SELECT id FROM things WHERE FALSE") is None
                assert await tx.execute("DELETE FROM things") == 1

    run(scenario())


@pytest.mark.parametrize(
    "sql, kind, constraint",
    [
        ("INSERT INTO things (id) VALUES ('a')", "unique", "pk_things"),
        ("INSERT INTO things (id, n, doc) VALUES ('b', 1, 'x')", "unique", "uq_things_n_doc"),
        ("INSERT INTO things (id, ok, at) VALUES ('b', TRUE, 0.5)", "unique", "things_at"),
        ("INSERT INTO things (id, owner) VALUES ('b', 'nobody')", "foreign key", None),
        ("DELETE FROM things WHERE id = 'a'", "foreign key", None),
    ],
)
def test_constraint_violations_are_conflicts(database_url: str, sql: str, kind: str, constraint: str | None) -> None:
    async def scenario() -> None:
        async with database_with_things(database_url) as db:
            async with db.transaction() as tx:
                await tx.execute("INSERT INTO things (id, ok, n, at, doc) VALUES ('a', TRUE, 1, 0.5, 'x')")
                await tx.execute("INSERT INTO things (id, owner) VALUES ('child', 'a')")
            with pytest.raises(Conflict) as caught:
                async with db.transaction() as tx:
                    await tx.execute("INSERT INTO things (id) VALUES ('undone')")
                    await tx.execute(sql)
            assert caught.value.kind == kind
            if constraint is not None:
                assert caught.value.constraint == constraint
            assert await thing_ids(db) == {"a", "child"}

    run(scenario())


def test_deferred_foreign_key_is_checked_at_commit(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as db:
            async with db.transaction() as tx:
                await tx.execute("CREATE TABLE parents (id TEXT PRIMARY KEY)")
                await tx.execute(
                    "CREATE TABLE children (id TEXT REFERENCES parents (id) DEFERRABLE INITIALLY DEFERRED)"
                )
            async with db.transaction() as tx:
                await tx.execute("INSERT INTO children (id) VALUES ('a')")
                await tx.execute("INSERT INTO parents (id) VALUES ('a')")
            with pytest.raises(Conflict) as caught:
                async with db.transaction() as tx:
                    await tx.execute("INSERT INTO children (id) VALUES ('b')")
            assert caught.value.kind == "foreign key"
            assert await db.fetch("SELECT id FROM children") == [{"id": "a"}]

    run(scenario())


def test_errors_contain_no_values(database_url: str) -> None:
    async def scenario() -> None:
        async with database_with_things(database_url) as db:
            await add_things(db, "secret")
            for sql, args in [
                ("INSERT INTO things (id) VALUES ($1)", ["secret"]),
                ("INSERT INTO things (id, owner) VALUES ('x', $1)", ["secret too"]),
                ("INSERT INTO things (id, doc) VALUES (NULL, $1)", ["secret"]),
                ("INSERT INTO things (id) VALUES ($1)", [{"password": "secret"}]),
                ("INSERT INTO things (id) VALUES ($1)", ["secret\0"]),
                ("INSERT INTO things (id, n) VALUES ('x', $1)", [9999999999999999999999]),
            ]:
                with pytest.raises(StoreError) as caught:
                    async with db.transaction() as tx:
                        await tx.execute(sql, *args)
                trace = "".join(traceback.format_exception(caught.value))
                lines = [
                    line for line in trace.splitlines() if "Error" in line or "DETAIL" in line or "Invalid" in line
                ]
                assert "secret" not in " ".join(lines)
                assert "99999" not in " ".join(lines)

    run(scenario())


@pytest.mark.parametrize(
    "sql, args",
    [
        (INSERT, ["x", None, 2**63, None, None]),
        (INSERT, ["x\0y", None, None, None, None]),
        (INSERT, ["x\ud800", None, None, None, None]),
        (INSERT, [None, None, None, None, None]),
        (INSERT, [{"a": 1}, None, None, None, None]),
        ("SELECT id FROM things WHERE id ~ $1", ["("]),
    ],
)
def test_unstorable_values_are_invalid(database_url: str, sql: str, args: list[Any]) -> None:
    async def scenario() -> None:
        async with database_with_things(database_url) as db:
            await add_things(db, "there")
            with pytest.raises(Invalid):
                async with db.transaction() as tx:
                    await tx.fetch(sql, *args)
            assert await thing_ids(db) == {"there"}

    run(scenario())


@pytest.mark.parametrize("sql", ["SELEC 1", "SELECT * FROM nowhere", "SELECT nothing FROM things"])
def test_invalid_statements_are_store_errors(database_url: str, sql: str) -> None:
    async def scenario() -> None:
        async with database_with_things(database_url) as db:
            with pytest.raises(StoreError) as caught:
                await db.fetch(sql)
            assert type(caught.value) is StoreError

    run(scenario())


def test_failed_statement_fails_the_transaction(database_url: str) -> None:
    async def scenario() -> None:
        async with database_with_things(database_url) as db:
            await add_things(db, "a")
            with pytest.raises(StoreError, match="failed before"):
                async with db.transaction() as tx:
                    with pytest.raises(Conflict):
                        await tx.execute("INSERT INTO things (id) VALUES ('a')")
                    await tx.execute("INSERT INTO things (id) VALUES ('b')")
            with pytest.raises(StoreError, match="ignored") as caught:
                async with db.transaction() as tx:
                    await tx.execute("INSERT INTO things (id) VALUES ('c')")
                    with pytest.raises(Conflict):
                        await tx.execute("INSERT INTO things (id) VALUES ('a')")
            assert isinstance(caught.value.__cause__, Exception)
            assert await thing_ids(db) == {"a"}

    run(scenario())


def test_reads_outside_a_transaction_cannot_write(database_url: str) -> None:
    async def scenario() -> None:
        async with database_with_things(database_url) as db:
            with pytest.raises(StoreError):
                await db.fetch("INSERT INTO things (id) VALUES ('a') RETURNING id")
            assert await thing_ids(db) == set()

    run(scenario())


def test_exception_rolls_back(database_url: str) -> None:
    async def scenario() -> None:
        async with database_with_things(database_url) as db:
            with pytest.raises(KeyError):
                async with db.transaction() as tx:
                    await tx.execute("INSERT INTO things (id) VALUES ('a')")
                    assert await tx.fetch_value("SELECT count(*) FROM things") == 1
                    assert await db.fetch_value("SELECT count(*) FROM things") == 0
                    raise KeyError
            assert await thing_ids(db) == set()

    run(scenario())


def test_closed_and_nested_transactions_are_refused(database_url: str) -> None:
    async def scenario() -> None:
        async with database_with_things(database_url) as db:
            async with db.transaction() as tx:
                with pytest.raises(RuntimeError):
                    async with db.transaction():
                        pass
            with pytest.raises(RuntimeError):
                await tx.execute("INSERT INTO things (id) VALUES ('late')")
            assert await thing_ids(db) == set()

    run(scenario())


def test_listeners_are_called_only_after_commit(database_url: str) -> None:
    async def scenario() -> None:
        async with database_with_things(database_url) as db:
            called = asyncio.Event()
            others: list[str] = []
            seen: list[set[str]] = []
            db.listen("mine", called.set)
            db.listen("another", lambda: others.append("called"))
            with pytest.raises(KeyError):
                async with db.transaction() as tx:
                    tx.notify("mine")
                    raise KeyError
            await asyncio.sleep(0.05)
            assert not called.is_set()
            async with db.transaction() as tx:
                await tx.execute("INSERT INTO things (id) VALUES ('a')")
                tx.notify("mine")
                tx.notify("mine")
                await asyncio.sleep(0.05)
                assert not called.is_set()
            await asyncio.wait_for(called.wait(), 60)
            seen.append(await thing_ids(db))
            assert seen == [{"a"}]
            assert others == []

    run(scenario())


def test_lock_serializes_transactions(database_url: str) -> None:
    async def increment(db: Any) -> None:
        async with db.transaction() as tx:
            await tx.lock("counter")
            n = await tx.fetch_value("SELECT n FROM things WHERE id = 'counter'")
            await tx.execute("UPDATE things SET n = $1 WHERE id = 'counter'", n + 1)

    async def scenario() -> None:
        async with database_with_things(database_url) as db:
            async with db.transaction() as tx:
                await tx.execute("INSERT INTO things (id, n) VALUES ('counter', 0)")
            await asyncio.gather(*(increment(db) for _ in range(40)))
            assert await db.fetch_value("SELECT n FROM things WHERE id = 'counter'") == 40

    run(scenario())
