"""Translation of SQL from PostgreSQL's syntax to SQLite's, except in literals."""

from __future__ import annotations

from pathlib import Path

import pytest

from kilonova.store import translate as module
from kilonova.store.sqlite import SqliteDatabase
from kilonova.store.translate import MAX_CACHED_LENGTH, MAX_CACHED_STATEMENTS, translate
from tests.support import run

MEMBERS = "(SELECT value FROM json_each(?{}))"


@pytest.mark.parametrize(
    "sql, expected",
    [
        ("SELECT $1, $12", "SELECT ?1, ?12"),
        ("SELECT '$1', \"$2\", $3", "SELECT '$1', \"$2\", ?3"),
        ("SELECT 'it''s $1' || $1", "SELECT 'it''s $1' || ?1"),
        ("SELECT 1 -- not $1\n, $1", "SELECT 1 -- not $1\n, ?1"),
        ("SELECT /* '$1 */ $1", "SELECT /* '$1 */ ?1"),
        ("SELECT a FROM t FOR UPDATE", "SELECT a FROM t"),
        ("SELECT a FROM t\n  for update  skip locked", "SELECT a FROM t"),
        ("SELECT a FROM t LIMIT $1 FOR NO KEY UPDATE NOWAIT", "SELECT a FROM t LIMIT ?1"),
        ("SELECT a FROM t, u FOR UPDATE OF t, u SKIP LOCKED", "SELECT a FROM t, u"),
        ("(SELECT a FROM t FOR SHARE) UNION SELECT $1", "(SELECT a FROM t) UNION SELECT ?1"),
        ("SELECT 'FOR UPDATE'", "SELECT 'FOR UPDATE'"),
        ("a = ANY($3) AND b = $1", f"a IN {MEMBERS.format(3)} AND b = ?1"),
        ("a=any( $3 )", f"a IN {MEMBERS.format(3)}"),
        ("a = ANY($3::text[])", f"a IN {MEMBERS.format(3)}"),
        ("a = ANY(CAST($2 AS BIGINT[]))", f"a IN {MEMBERS.format(2)}"),
        ("a <> ALL($3)", f"a NOT IN {MEMBERS.format(3)}"),
        ("a != ALL($3)", f"a NOT IN {MEMBERS.format(3)}"),
        ("'a = ANY($3)'", "'a = ANY($3)'"),
        ("name ~ $1 AND name !~ $2", "name REGEXP ?1 AND name NOT REGEXP ?2"),
        ("SELECT ' ~ '", "SELECT ' ~ '"),
        ("INSERT INTO t (a) VALUES ($1) ON CONFLICT (a) DO UPDATE SET b = $2 RETURNING a", None),
    ],
)
def test_syntax_is_translated(sql: str, expected: str | None) -> None:
    assert translate(sql).sql == (expected or sql.replace("$", "?"))


@pytest.mark.parametrize(
    "sql, changes",
    [
        ("SELECT a FROM t FOR UPDATE", False),
        ("SELECT 'DELETE'", False),
        ("SELECT deleted, updated_at FROM t", False),
        ("update t SET a = 1", True),
        ("WITH x AS (SELECT 1) INSERT INTO t SELECT * FROM x", True),
        ("DELETE FROM t", True),
    ],
)
def test_changing_statements_are_detected(sql: str, changes: bool) -> None:
    assert translate(sql).changes is changes


def test_boolean_expressions_are_detected() -> None:
    assert translate("SELECT CAST(a > $1 AS BOOLEAN) AS big, CAST(b AS BOOLEAN)  as small").flags == {"big", "small"}


def test_statement_caches_are_limited(tmp_path: Path) -> None:
    """Many different statements, as filters of users make them, and long ones."""

    async def scenario() -> None:
        db = SqliteDatabase(tmp_path / "some.db")
        try:
            for number in range(MAX_CACHED_STATEMENTS + 500):
                assert await db.fetch_value(f"SELECT {number} AS number") == number
            assert module._cached.cache_info().currsize <= MAX_CACHED_STATEMENTS
            assert 0 < len(db._reader._columns_by_sql) <= MAX_CACHED_STATEMENTS
            known = len(db._reader._columns_by_sql), module._cached.cache_info().misses
            for number in range(20):
                conditions = f"'{number}{'x' * MAX_CACHED_LENGTH}' <> 'a'"
                assert await db.fetch_one(f"SELECT 1 AS one WHERE {conditions} AND $1 = 1", 1) == {"one": 1}
            assert (len(db._reader._columns_by_sql), module._cached.cache_info().misses) == known
        finally:
            await db.close()

    run(scenario())
