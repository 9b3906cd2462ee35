"""Makes a backup, also of a running cloud."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import apsw

from kilonova import __version__, clock
from kilonova.backup import files, manifest
from kilonova.backup.manifest import DATA, DATABASES, FORMAT, BackupError, BackupFile, Manifest
from kilonova.backup.snapshots import Snapshot, SqliteSnapshot, at_one_time
from kilonova.config import Config
from kilonova.store import migrate
from kilonova.store.url import dialect_of, sqlite_path

# How often the snapshots are taken again because a needed file was deleted in the milliseconds after them.
_ATTEMPTS = 5
# By directory, the rows whose file `ID.DATA_ID` must exist.
_NEEDED = {
    "images": "SELECT id, data_id FROM images WHERE data_id IS NOT NULL AND status = 'active'",
    "volumes": "SELECT id, data_id FROM volumes WHERE data_id IS NOT NULL AND status <> 'deleting'",
    "volumes/snapshots": "SELECT id, data_id FROM volume_snapshots WHERE data_id IS NOT NULL AND status <> 'deleting'",
}


class _Contents(NamedTuple):
    """`at` is the time of the snapshots. `files` has links by path in the data directory: deletions keep them."""

    at: float
    database: Snapshot
    host_files: list[SqliteSnapshot]
    files: dict[Path, Path]
    missing: list[str]


async def create(config: Config, target: Path) -> Manifest:
    """Write a backup to a new or empty directory. Raises BackupError, StoreError or OSError.

    It is written under another name first, so a directory with the name of the target is complete.
    """
    await _check(config, target)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    partial.mkdir(mode=0o700)
    try:
        with files.links_directory(config.data_dir) as links:
            async with _contents(config, links) as contents:
                written = await _write(config, contents, partial)
        manifest.write(partial, written)
        files.sync_directories(partial)
        partial.rename(target)
        files.sync_directory(target.parent)
    except BlockingIOError:
        raise BackupError(f"another backup of {config.data_dir} is under way") from None
    except apsw.Error as error:
        raise BackupError(f"the databases cannot be read: {error}") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return written


async def _check(config: Config, target: Path) -> None:
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise BackupError(f"{target} exists and is not empty: a backup needs a new directory")
    if config.data_dir.resolve() in (target.resolve(), *target.resolve().parents):
        raise BackupError(f"{target} is in the data directory: choose a directory outside of it")
    if not config.data_dir.is_dir() or await migrate.revision(config.database_url) is None:
        raise BackupError(f"{config.data_dir} has no cloud")


@asynccontextmanager
async def _contents(config: Config, links: Path) -> AsyncIterator[_Contents]:
    """The contents as of one point in time.

    A file is complete before the database refers to it, and only volumes are changed afterwards. So the files right
    after the snapshots belong to them, unless one was deleted in between.
    """
    data_dir, url = config.data_dir, config.database_url
    main_file = sqlite_path(url) if dialect_of(url) == "sqlite" else None
    attempts = 0
    while True:
        attempts += 1
        found = [data_dir / path for path in files.list_files(data_dir)]
        databases = {path for path in found if files.is_sqlite(path)}
        at = clock.now()
        async with at_one_time(url, sorted(databases - {main_file})) as (database, host_files):
            paths = [path for path in files.list_files(data_dir) if data_dir / path not in databases]
            kept = files.link_files(data_dir, paths, links)
            missing = [path async for path in _needed_files(database) if Path(path) not in kept]
            if not missing or attempts == _ATTEMPTS:
                yield _Contents(at, database, host_files, kept, missing)
                return


async def _needed_files(database: Snapshot) -> AsyncIterator[str]:
    for directory, sql in _NEEDED.items():
        for object_id, data_id in await database.fetch(sql):
            yield f"{directory}/{object_id}.{data_id}"


async def _write(config: Config, contents: _Contents, partial: Path) -> Manifest:
    kind = dialect_of(config.database_url)
    await contents.database.write(partial / DATABASES[kind])
    for file in contents.host_files:
        await file.write(partial / DATA / file.path.relative_to(config.data_dir))
    for path, source in contents.files.items():
        files.copy_file(source, partial / DATA / path)
    ((schema,),) = await contents.database.fetch("SELECT version_num FROM alembic_version")
    return Manifest(
        format=FORMAT,
        release=__version__,
        schema=schema,
        created_at=clock.iso(contents.at),
        database=kind,
        files=list(_describe(partial)),
        missing=contents.missing,
    )


def _describe(directory: Path) -> Iterator[BackupFile]:
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            yield BackupFile(path.relative_to(directory).as_posix(), path.stat().st_size, files.digest(path))
