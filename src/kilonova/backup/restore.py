"""Restores a backup into an empty data directory and database, or replaces those that are there."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from kilonova import datadir
from kilonova.backup import files, manifest
from kilonova.backup.manifest import DATA, DATABASES, BackupError, Manifest
from kilonova.backup.snapshots import program, run_program
from kilonova.config import Config
from kilonova.store import incarnation, migrate
from kilonova.store.url import dialect_of, sqlite_path

# A database with these tables is one of Kilonova, of whatever release.
_OUR_TABLES = {"alembic_version", "operations", "servers"}
_SIDE_FILES = ("", "-wal", "-shm", "-journal")


def check(config: Config, source: Path) -> Manifest:
    """Check that the backup fits and is intact. Raises BackupError."""
    found = manifest.read(source)
    kind = dialect_of(config.database_url)
    if found.database != kind:
        raise BackupError(
            f"{source} is a backup of a {found.database} database, and the configured database is {kind}: "
            "a restore does not move a cloud to another kind of database"
        )
    if found.schema not in migrate.known_revisions():
        raise BackupError(
            f"{source} is of release {found.release} with schema {found.schema}, which this release does not know: "
            "restore it with that release or a later one"
        )
    if kind == "postgresql":
        program("pg_restore")
    manifest.verify(source, found)
    return found


async def is_empty(config: Config) -> bool:
    """Whether there is nothing that a restore would replace."""
    if config.data_dir.is_dir() and any(files.is_included(path.name) for path in config.data_dir.iterdir()):
        return False
    return await migrate.revision(config.database_url) is None


async def restore(config: Config, source: Path, found: Manifest) -> Path | None:
    """Restore a checked backup. Return the directory with what it has replaced, if there was anything.

    No process may use the data directory and the database. No process starts in a directory that an interrupted restore
    left behind. Raises BackupError, StoreError or OSError.
    """
    tables = await _postgresql_tables(config.database_url) if found.database == "postgresql" else set()
    if tables and not tables >= _OUR_TABLES:
        raise BackupError("the database has tables of another application; use a separate database for Kilonova")
    staging = config.data_dir / datadir.RESTORING
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(mode=0o700)
    for file in found.files:
        files.copy_file(source / file.path, staging / file.path)
    if found.database == "sqlite":
        # Before anything is replaced, so that a failed upgrade changes nothing.
        await _prepare_database(f"sqlite://{staging.resolve() / DATABASES['sqlite']}")
    (staging / DATA).mkdir(mode=0o700, exist_ok=True)
    replaced = _put_aside(config)
    for path in (staging / DATA).iterdir():
        path.rename(config.data_dir / path.name)
    if found.database == "sqlite":
        shutil.move(staging / DATABASES["sqlite"], sqlite_path(config.database_url))
    else:
        await _restore_postgresql(config.database_url, tables, staging / DATABASES["postgresql"])
    files.sync_directories(config.data_dir)
    shutil.rmtree(staging)
    return replaced


def _put_aside(config: Config) -> Path | None:
    """Move what the restore replaces to a directory of its own."""
    database = sqlite_path(config.database_url) if dialect_of(config.database_url) == "sqlite" else None
    found = [path for path in config.data_dir.iterdir() if files.is_included(path.name)]
    if database is not None and database.parent != config.data_dir:
        found += [path for end in _SIDE_FILES if (path := database.with_name(database.name + end)).exists()]
    if not found:
        return None
    directory = config.data_dir / f"{datadir.REPLACED}{time.strftime('%Y%m%dT%H%M%S')}"
    directory.mkdir(mode=0o700)
    for path in found:
        shutil.move(path, directory / path.name)
    return directory


async def _postgresql_tables(url: str) -> set[str]:
    connection = await migrate.connect(url)
    try:
        rows = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = current_schema()")
    finally:
        await connection.close()
    return {row["tablename"] for row in rows}


async def _restore_postgresql(url: str, replaced: set[str], dump: Path) -> None:
    if replaced:
        connection = await migrate.connect(url)
        try:
            names = ", ".join(f'"{name}"' for name in sorted(replaced))
            await connection.execute(f"DROP TABLE {names} CASCADE")
        finally:
            await connection.close()
    run_program("pg_restore", url, "--single-transaction", "--exit-on-error", str(dump))
    await _prepare_database(url)


async def _prepare_database(url: str) -> None:
    """Upgrade the schema, and begin an incarnation that hosts accept."""
    await migrate.upgrade(url)
    await incarnation.renew(url)
