"""Consistent snapshots of databases that processes write to.

All databases of a cloud are read as of one point in time: the read transactions begin while hosts cannot write.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote

import apsw

from kilonova.backup.manifest import BackupError
from kilonova.store.migrate import connect
from kilonova.store.url import dialect_of, sqlite_path

_PASSWORD = re.compile(r"^(\w+://[^:/@?]*):([^@/?]*)@")
BUSY_TIMEOUT_MILLISECONDS = 30_000


class Snapshot(Protocol):
    """A database as of the time of `begin`."""

    async def begin(self) -> None: ...

    async def fetch(self, sql: str) -> list[tuple[Any, ...]]: ...

    async def write(self, path: Path) -> None:
        """Write the database to a new file."""

    async def close(self) -> None: ...


@asynccontextmanager
async def at_one_time(url: str, host_files: list[Path]) -> AsyncIterator[tuple[Snapshot, list[SqliteSnapshot]]]:
    """Snapshots of the database and of the SQLite files of hosts.

    A host's command is committed to the database before, and its result after the host has written. So with the hosts'
    files locked, the database matches them.
    """
    database = await open_snapshot(url)
    hosts = [SqliteSnapshot(path) for path in host_files]
    try:
        with ExitStack() as locks:
            for host in hosts:
                locks.enter_context(_locked(host.path))
            for snapshot in (database, *hosts):
                await snapshot.begin()
        yield database, hosts
    finally:
        for snapshot in (database, *hosts):
            await snapshot.close()


async def open_snapshot(url: str) -> Snapshot:
    if dialect_of(url) == "sqlite":
        return SqliteSnapshot(sqlite_path(url))
    return await PostgresSnapshot.connect(url)


class SqliteSnapshot:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection = _open(path)

    async def begin(self) -> None:
        self._connection.execute("BEGIN")
        self._connection.execute("SELECT COUNT(*) FROM sqlite_master").fetchall()  # only reading begins a snapshot

    async def fetch(self, sql: str) -> list[tuple[Any, ...]]:
        return list(self._connection.execute(sql))

    async def write(self, path: Path) -> None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        copy = apsw.Connection(str(path))
        try:
            with copy.backup("main", self._connection, "main") as backup:
                backup.step(-1)  # in one step, so that it never starts again
            copy.pragma("journal_mode", "delete")  # one file
        finally:
            copy.close()

    async def close(self) -> None:
        self._connection.close()


class PostgresSnapshot:
    """Uses PostgreSQL's own programs, which write all that a later release of the server needs."""

    def __init__(self, url: str, connection: Any) -> None:
        self._url = url
        self._connection = connection
        self._name = ""

    @classmethod
    async def connect(cls, url: str) -> PostgresSnapshot:
        program("pg_dump")
        connection = await connect(url)
        await connection.execute("SET idle_in_transaction_session_timeout = 0")
        return cls(url, connection)

    async def begin(self) -> None:
        await self._connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        self._name = await self._connection.fetchval("SELECT pg_export_snapshot()")

    async def fetch(self, sql: str) -> list[tuple[Any, ...]]:
        return [tuple(row.values()) for row in await self._connection.fetch(sql)]

    async def write(self, path: Path) -> None:
        schema = await self._connection.fetchval("SELECT quote_ident(current_schema())")
        options = ["--format=custom", f"--snapshot={self._name}", f"--table={schema}.*", f"--file={path}"]
        run_program("pg_dump", self._url, *options)

    async def close(self) -> None:
        await self._connection.close()


def program(name: str) -> str:
    """The path of one of PostgreSQL's programs. Raises BackupError."""
    found = shutil.which(name)
    if found is None:
        raise BackupError(f"{name} is missing: install PostgreSQL's client programs (Debian: postgresql-client)")
    return found


def run_program(name: str, url: str, *options: str) -> None:
    """Run one of PostgreSQL's programs on the database. The password is not in its arguments, which others can see."""
    password = _PASSWORD.search(url)
    environment = {**os.environ, **({"PGPASSWORD": unquote(password[2])} if password else {})}
    target = _PASSWORD.sub(r"\1@", url)
    ended = subprocess.run(
        [program(name), "--no-owner", "--no-privileges", "--no-password", *options, f"--dbname={target}"],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    if ended.returncode:
        raise BackupError(ended.stderr.strip() or f"{name} ended with code {ended.returncode}")


def _open(path: Path) -> apsw.Connection:
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    connection.set_busy_timeout(BUSY_TIMEOUT_MILLISECONDS)
    return connection


class _locked:
    """Holds the write lock of a SQLite file. Processes that want to write wait."""

    def __init__(self, path: Path) -> None:
        self._connection = _open(path)

    def __enter__(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    def __exit__(self, *_: object) -> None:
        self._connection.close()
