"""Reads the schema of a database from its system catalogue, in a comparable form."""

from __future__ import annotations

import re
from typing import Any

from kilonova.store import Database

Catalogue = dict[str, Any]

PG_COLUMNS = """
SELECT c.relname AS of, a.attname AS name, format_type(a.atttypid, a.atttypmod) AS type, a.attnotnull AS required,
       CAST(l.collname AS TEXT) AS collation, pg_get_expr(d.adbin, d.adrelid) AS fallback
FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
LEFT JOIN pg_collation l ON l.oid = a.attcollation LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'r' AND a.attnum > 0 AND NOT a.attisdropped
"""
PG_CONSTRAINTS = """
SELECT conrelid::regclass::text AS of, CAST(conname AS TEXT) AS name, pg_get_constraintdef(oid) AS definition
FROM pg_constraint WHERE connamespace = 'public'::regnamespace
"""
PG_INDEXES = (
    "SELECT tablename AS of, CAST(indexname AS TEXT) AS name, indexdef FROM pg_indexes WHERE schemaname = 'public'"
)


async def catalogue(db: Database) -> Catalogue:
    return await (_postgresql(db) if db.dialect == "postgresql" else _sqlite(db))


async def _postgresql(db: Database) -> Catalogue:
    found: Catalogue = {}
    for sql in (PG_COLUMNS, PG_CONSTRAINTS, PG_INDEXES):
        for row in await db.fetch(sql):
            found.setdefault(row.pop("of"), []).append(tuple(row.values()))
    return {name: sorted(parts, key=str) for name, parts in found.items()}


async def _sqlite(db: Database) -> Catalogue:
    tables = await db.fetch("SELECT name, sql FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'")
    return {table["name"]: await _sqlite_table(db, table["name"], table["sql"]) for table in tables}


async def _sqlite_table(db: Database, name: str, sql: str) -> list[Any]:
    columns = await db.fetch(
        'SELECT name, type, "notnull" AS required, dflt_value, pk, hidden FROM pragma_table_xinfo($1)', name
    )
    keys = await db.fetch(
        'SELECT "from" AS source, "table" AS target, "to" AS field, on_delete, on_update '
        "FROM pragma_foreign_key_list($1)",
        name,
    )
    indexes = await db.fetch("SELECT name, sql FROM sqlite_master WHERE type = 'index' AND tbl_name = $1", name)
    uniques = await db.fetch('SELECT "unique" AS one, origin, partial FROM pragma_index_list($1)', name)
    # SQLite has the names of constraints only in the text of the statement.
    constraints = re.findall(r"CONSTRAINT\s+\"?(\w+)", sql)
    parts = [tuple(row.values()) for row in (*columns, *keys, *uniques)]
    parts += [(row["name"], re.sub(r"\s+", " ", row["sql"] or "")) for row in indexes]
    return sorted([*parts, *((each,) for each in constraints), ("AUTOINCREMENT" in sql.upper(),)], key=str)
