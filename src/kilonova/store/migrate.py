"""Upgrades a database's schema to this release's head. Imports SQLAlchemy only if there is something to migrate."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from kilonova.store.interface import SchemaError
from kilonova.store.migrations.head import HEAD
from kilonova.store.sessions import UPGRADE_NAME, list_sessions
from kilonova.store.url import dialect_of, sqlite_path

if TYPE_CHECKING:
    import apsw

    from kilonova.store.interface import Database

_LOCK = "kilonova schema"

MIGRATIONS = Path(__file__).parent / "migrations"

OLDEST_COMPATIBLE = HEAD
"""Processes of releases with this schema or a later one continue to work on the schema of this release.

Equal to the head unless all revisions since are ones that older code does not notice, such as a new index.
"""


class Upgrade(NamedTuple):
    """Revisions of the schema before and after; None is an empty database."""

    before: str | None
    after: str


async def upgrade(url: str, *, force: bool = False) -> Upgrade:
    """Upgrade the schema. Several processes may do so at the same time: one upgrades, the others wait.

    Raises SchemaError if the database is of a newer release, or if processes use it that cannot use the new schema.
    `force`: ignore such processes. On SQLite the lock of the data directory excludes them.
    """
    if dialect_of(url) == "sqlite":
        return await asyncio.to_thread(_upgrade_sqlite, sqlite_path(url))
    return await _upgrade_postgresql(url, force)


async def check(db: Database) -> None:
    """Check the schema of a database that this process has opened, after a concurrent upgrade has ended.

    So a process either has sessions that the upgrade sees, or sees the upgrade here.
    """
    async with db.transaction() as tx:
        await tx.lock(_LOCK)
        found = await tx.fetch_value("SELECT version_num FROM alembic_version")
    if found != HEAD:
        raise SchemaError(f"the database has been upgraded to schema {found} meanwhile; this release needs {HEAD}")


async def revision(url: str) -> str | None:
    """The revision of a database, which is neither changed nor created."""
    if dialect_of(url) == "sqlite":
        return _sqlite_file_revision(sqlite_path(url))
    connection = await connect(url)
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
        _check_known(before)
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


async def connect(url: str) -> Any:
    """A plain connection for commands that upgrade or replace the database."""
    import asyncpg

    from kilonova.store.postgres_errors import DRIVER_ERRORS, translate_error

    try:
        return await asyncpg.connect(url, timeout=10, server_settings={"application_name": UPGRADE_NAME})
    except DRIVER_ERRORS as error:
        raise translate_error(error, False) from error


async def _upgrade_postgresql(url: str, force: bool) -> Upgrade:
    connection = await connect(url)
    try:
        before = await _postgresql_revision(connection)
        if before == HEAD:
            return Upgrade(HEAD, HEAD)
        async with connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", _LOCK)
            before = await _postgresql_revision(connection)
            if before is None:
                await connection.execute(snapshot("postgresql"))
            elif before != HEAD:
                _check_known(before)
                if not force:
                    await _check_sessions(connection)
                from kilonova.store.alembic_commands import upgrade_script

                await connection.execute(upgrade_script("postgresql", before))
        return Upgrade(before, HEAD)
    finally:
        await connection.close()


def known_revisions() -> set[str]:
    return {path.name.partition("_")[0] for path in (MIGRATIONS / "versions").glob("[0-9]*.py")}


def _check_known(found: str | None) -> None:
    """Raises SchemaError if this release does not know the revision."""
    if found is not None and found not in known_revisions():
        raise SchemaError(f"the database has schema {found} of a newer release; this release needs {HEAD}")


async def _check_sessions(connection: Any) -> None:
    """Raises SchemaError if processes use the database that cannot use the schema of this release."""
    if older := await list_sessions(connection, needing_before=OLDEST_COMPATIBLE):
        users = ", ".join(map(str, older))
        raise SchemaError(f"the upgrade to schema {HEAD} must wait until these processes have stopped: {users}")


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
