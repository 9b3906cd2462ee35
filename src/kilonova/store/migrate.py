"""Upgrades a database's schema to this release's head. Imports SQLAlchemy only if there is something to migrate."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from kilonova.store.interface import SchemaError
from kilonova.store.migrations.head import HEAD
from kilonova.store.url import dialect_of, sqlite_path

if TYPE_CHECKING:
    import apsw

MIGRATIONS = Path(__file__).parent / "migrations"


class Upgrade(NamedTuple):
    """Revisions of the schema before and after; None is an empty database."""

    before: str | None
    after: str


async def upgrade(url: str) -> Upgrade:
    """Upgrade the schema. Several processes may do so at the same time: one upgrades, the others wait."""
    if dialect_of(url) == "sqlite":
        return await asyncio.to_thread(_upgrade_sqlite, sqlite_path(url))
    return await _upgrade_postgresql(url)


async def revision(url: str) -> str | None:
    """The revision of a database, which is neither changed nor created."""
    if dialect_of(url) == "sqlite":
        return _sqlite_file_revision(sqlite_path(url))
    connection = await _connect(url)
    try:
        return await _postgresql_revision(connection)
    finally:
        await connection.close()


def snapshot(dialect: str) -> str:
    """The script that creates the schema of a new database, including the version stamp."""
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
        from kilonova.store.alembic_commands import upgrade_sqlite

        upgrade_sqlite(path)
    return Upgrade(before, HEAD)


def _create_sqlite(connection: apsw.Connection) -> bool:
    """Create the schema. False if another process has done so meanwhile."""
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
        _refuse_foreign_tables(tables)
        return None
    return _single_revision([version for (version,) in connection.execute("SELECT version_num FROM alembic_version")])


async def _connect(url: str) -> Any:
    import asyncpg

    from kilonova.store.postgres_errors import DRIVER_ERRORS, translate_error

    try:
        return await asyncpg.connect(url, timeout=10, server_settings={"application_name": "kilonova upgrade"})
    except DRIVER_ERRORS as error:
        raise translate_error(error, False) from error


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
                from kilonova.store.alembic_commands import upgrade_script

                await connection.execute(upgrade_script("postgresql", before))
        return Upgrade(before, HEAD)
    finally:
        await connection.close()


async def _postgresql_revision(connection: Any) -> str | None:
    tables = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = current_schema()")
    names = {row["tablename"] for row in tables}
    if "alembic_version" not in names:
        _refuse_foreign_tables(names)
        return None
    return _single_revision(
        [row["version_num"] for row in await connection.fetch("SELECT version_num FROM alembic_version")]
    )


def _refuse_foreign_tables(tables: set[str]) -> None:
    if tables:
        raise SchemaError("the database has tables of another application; use a separate database for Kilonova")


def _single_revision(versions: list[str]) -> str:
    if len(versions) != 1:
        raise SchemaError(f"the table alembic_version has {len(versions)} rows, expected one")
    return versions[0]
