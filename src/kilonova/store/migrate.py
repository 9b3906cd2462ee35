"""Brings a database's schema to this release's head, without SQLAlchemy where there is nothing to migrate."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from kilonova.store.migrations.head import HEAD
from kilonova.store.port import SchemaError
from kilonova.store.url import dialect_of, sqlite_path

if TYPE_CHECKING:
    import apsw

MIGRATIONS = Path(__file__).parent / "migrations"


class Upgrade(NamedTuple):
    """Revisions of the schema; None is a database without one."""

    before: str | None
    after: str


async def upgrade(url: str) -> Upgrade:
    """Safe to call from several processes at once: one does it, the others find it done."""
    if dialect_of(url) == "sqlite":
        return await asyncio.to_thread(_upgrade_sqlite, sqlite_path(url))
    return await _upgrade_postgresql(url)


async def revision(url: str) -> str | None:
    """The revision a database is at. Nothing is changed or made."""
    if dialect_of(url) == "sqlite":
        return _sqlite_file_revision(sqlite_path(url))
    connection = await _connect(url)
    try:
        return await _postgresql_revision(connection)
    finally:
        await connection.close()


def snapshot(dialect: str) -> str:
    """The script that makes a new database as it is at head, stamp included."""
    return (MIGRATIONS / f"schema.{dialect}.sql").read_text()


def _upgrade_sqlite(path: Path) -> Upgrade:
    from kilonova.store.sqlite import connect

    connection = connect(path)
    try:
        before = _sqlite_revision(connection)
        if before is None and _create_sqlite(connection):
            return Upgrade(None, HEAD)
        before = _sqlite_revision(connection)
    finally:
        connection.close()
    if before != HEAD:
        from kilonova.store.revising import upgrade_sqlite

        upgrade_sqlite(path)
    return Upgrade(before, HEAD)


def _create_sqlite(connection: apsw.Connection) -> bool:
    """Make the schema, unless another process was faster."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        new = _sqlite_revision(connection) is None
        if new:
            connection.execute(snapshot("sqlite"))
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return new


def _sqlite_file_revision(path: Path) -> str | None:
    import apsw

    if not path.exists():
        return None
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        connection.set_busy_timeout(5000)
        return _sqlite_revision(connection)
    finally:
        connection.close()


def _sqlite_revision(connection: apsw.Connection) -> str | None:
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if "alembic_version" not in tables:
        _refuse_others(tables)
        return None
    return _only([version for (version,) in connection.execute("SELECT version_num FROM alembic_version")])


async def _connect(url: str) -> Any:
    import asyncpg

    from kilonova.store.postgres_errors import CAUGHT, explained

    try:
        return await asyncpg.connect(url, timeout=10, server_settings={"application_name": "kilonova upgrade"})
    except CAUGHT as error:
        raise explained(error, False) from error


async def _upgrade_postgresql(url: str) -> Upgrade:
    connection = await _connect(url)
    try:
        before = await _postgresql_revision(connection)
        if before == HEAD:
            return Upgrade(HEAD, HEAD)
        async with connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock(hashtextextended('kilonova schema', 0))")
            before = await _postgresql_revision(connection)
            if before is None:
                await connection.execute(snapshot("postgresql"))
            elif before != HEAD:
                from kilonova.store.revising import script

                await connection.execute(script("postgresql", before))
        return Upgrade(before, HEAD)
    finally:
        await connection.close()


async def _postgresql_revision(connection: Any) -> str | None:
    tables = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = current_schema()")
    names = {row["tablename"] for row in tables}
    if "alembic_version" not in names:
        _refuse_others(names)
        return None
    return _only([row["version_num"] for row in await connection.fetch("SELECT version_num FROM alembic_version")])


def _refuse_others(tables: set[str]) -> None:
    if tables:
        raise SchemaError("the database holds tables of something else; give Kilonova one of its own")


def _only(versions: list[str]) -> str:
    if len(versions) != 1:
        raise SchemaError(f"the database is stamped with {len(versions)} revisions instead of one")
    return versions[0]
