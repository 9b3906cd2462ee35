"""Writes the schema snapshots that make a first start fast, from the metadata."""

from __future__ import annotations

from typing import Any


def dialect_named(name: str) -> Any:
    from sqlalchemy.dialects import postgresql, sqlite

    return {"sqlite": sqlite.dialect, "postgresql": postgresql.dialect}[name]()


def tables_and_indexes(dialect: str) -> str:
    """The metadata as a script of CREATE statements."""
    from sqlalchemy.schema import CreateIndex, CreateTable

    from kilonova.store.schema import metadata

    compiler = dialect_named(dialect)
    statements = []
    for table in metadata.sorted_tables:
        statements.append(str(CreateTable(table).compile(dialect=compiler)))
        indexes = sorted(table.indexes, key=lambda index: str(index.name))
        statements.extend(str(CreateIndex(index).compile(dialect=compiler)) for index in indexes)
    return "".join(f"{_tidy(statement)};\n\n" for statement in statements)


def _tidy(statement: str) -> str:
    return "\n".join(line.replace("\t", "    ").rstrip() for line in statement.strip().splitlines())
