"""Excludes the processes of a cloud while a command replaces or upgrades its data."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from kilonova import datadir, store
from kilonova.cli.options import Failure, InUse
from kilonova.config import Config
from kilonova.store.sessions import Session
from kilonova.store.url import dialect_of


@contextmanager
def locked_directory(config: Config) -> Iterator[None]:
    """Lock the data directory, if there is one. Raises InUse."""
    if not config.data_dir.is_dir():
        yield
        return
    try:
        with datadir.lock(config.data_dir):
            yield
    except datadir.DirectoryInUse as error:
        raise InUse(str(error)) from None


@contextmanager
def stopped_cloud(config: Config) -> Iterator[None]:
    """Lock the data directory, and check that no process uses the database. Raises InUse."""
    with locked_directory(config):
        if sessions := asyncio.run(_sessions(config.database_url)):
            raise InUse(f"the database is in use by {', '.join(map(str, sessions))}; stop these processes first")
        yield


async def _sessions(url: str) -> list[Session]:
    """The processes that use a PostgreSQL database. The lock of the data directory excludes those of SQLite."""
    from kilonova.store.migrate import connect
    from kilonova.store.sessions import list_sessions

    try:
        if dialect_of(url) == "sqlite":
            return []
        connection = await connect(url)
    except (store.StoreError, ValueError, OSError) as error:
        raise Failure(str(error)) from None
    try:
        return await list_sessions(connection)
    finally:
        await connection.close()
