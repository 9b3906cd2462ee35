"""The database: one interface to SQLite and PostgreSQL, the schema and its migrations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kilonova.store.interface import (
    Conflict,
    Database,
    Invalid,
    Reader,
    Row,
    SchemaError,
    StorageFull,
    StoreError,
    TooSlow,
    Transaction,
    Unavailable,
)
from kilonova.store.url import dialect_of, sqlite_path

if TYPE_CHECKING:
    from kilonova.store.migrate import Upgrade

__all__ = [
    "Conflict",
    "Database",
    "Invalid",
    "Reader",
    "Row",
    "SchemaError",
    "StorageFull",
    "StoreError",
    "TooSlow",
    "Transaction",
    "Unavailable",
    "check",
    "open_database",
    "upgrade",
]


async def open_database(url: str) -> Database:
    """Open a database that `upgrade` has prepared. Raises Unavailable if it cannot be reached."""
    if dialect_of(url) == "sqlite":
        from kilonova.store.sqlite import SqliteDatabase

        return SqliteDatabase(sqlite_path(url))
    from kilonova.store.postgres import PostgresDatabase

    return await PostgresDatabase.connect(url)


async def upgrade(url: str) -> Upgrade:
    """Upgrade the schema to this release's head. This is fast for a new or current database."""
    from kilonova.store import migrate

    return await migrate.upgrade(url)


async def check(db: Database) -> None:
    """Check that an open database still has the schema that `upgrade` made."""
    from kilonova.store import migrate

    await migrate.check(db)
