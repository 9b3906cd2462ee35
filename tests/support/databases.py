"""A fresh database for each test: SQLite, and PostgreSQL from a server of the test run's own.

def test_something(database_url):            # runs once on each
    async def scenario():
        async with opened(database_url) as db: ...
    run(scenario())
"""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

from kilonova.store import Database, open_database
from tests.support.delayed import DELAYS

DIALECTS = ("sqlite", "postgresql")

# Made once in the database that tests get: what a session plans for a function, it need not plan again.
EMPTYING = """
CREATE SCHEMA support;
-- Which tables belong to the schema, so that those a test makes can be told apart.
CREATE TABLE support.kept AS SELECT tablename FROM pg_tables WHERE schemaname = 'public';
CREATE FUNCTION support.empty() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    name text;
BEGIN
    FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = 'public'
            AND tablename NOT IN (SELECT tablename FROM support.kept) LOOP
        EXECUTE format('DROP TABLE %I CASCADE', name);
    END LOOP;
    {tables}
    FOR name IN SELECT sequencename FROM pg_sequences WHERE last_value IS NOT NULL LOOP
        EXECUTE format('ALTER SEQUENCE %I RESTART', name);
    END LOOP;
END $$;
"""
ONE_TABLE = """
    IF pg_relation_size('{table}'::regclass) > 1000000 THEN
        TRUNCATE {table} CASCADE;
    ELSIF EXISTS (SELECT 1 FROM {table}) THEN
        DELETE FROM {table};
    END IF;
"""

# Those of processes that were killed may still be about to commit.
OTHERS = """
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()
"""


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Database]:
    db = DELAYS.database(await open_database(url))
    try:
        yield db
    finally:
        await db.close()


@pytest.fixture(params=DIALECTS)
def database_url(request: pytest.FixtureRequest) -> str:
    """The URL of a fresh database with the whole schema."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture
def database(database_url: str) -> Callable[[], AbstractAsyncContextManager[Database]]:
    """Opens the test's fresh database: `async with database() as db`."""
    return partial(opened, database_url)


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    path = tmp_path / "kilonova.db"
    shutil.copy(sqlite_template(), path)
    return f"sqlite://{path}"


@pytest.fixture
def postgresql_url(postgresql_server: PostgresServer) -> str:
    return postgresql_server.url(postgresql_server.fresh())


@pytest.fixture
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a database without any table. Parametrise it indirectly with a dialect."""
    if request.param == "sqlite":
        yield f"sqlite://{tmp_path}/empty.db"
        return
    server: PostgresServer = request.getfixturevalue("postgresql_server")
    name = server.create()
    yield server.url(name)
    server.drop(name)


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[PostgresServer]:
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    if not programs:
        if os.environ.get("KILONOVA_REQUIRE_ALL") == "1":
            pytest.fail("PostgreSQL is not installed, and KILONOVA_REQUIRE_ALL=1")
        pytest.skip("PostgreSQL is not installed (/usr/lib/postgresql/*/bin)")
    server = PostgresServer(programs[-1].parent)
    atexit.register(server.remove)
    try:
        server.initialise()
        server.start()
        yield server
    finally:
        server.remove()


@cache
def sqlite_template() -> Path:
    """A closed database file with the schema as the metadata has it now."""
    import apsw

    from kilonova.store.generate import tables_and_indexes

    directory = Path(tempfile.mkdtemp(prefix="kilonova-sqlite-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    path = directory / "template.db"
    connection = apsw.Connection(str(path))
    connection.pragma("journal_mode", "wal")
    connection.execute("BEGIN;" + tables_and_indexes("sqlite") + "COMMIT")
    connection.close()
    return path


class PostgresServer:
    """A throw-away server on a Unix socket, run by a user who is not root. It dies with the test process."""

    def __init__(self, programs: Path) -> None:
        self.programs = programs
        self.directory = Path(tempfile.mkdtemp(prefix="kilonova-postgresql-"))
        self.directory.chmod(0o755)
        self.data = self.directory / "data"
        self.process: subprocess.Popen[bytes] | None = None
        self._database: str | None = None
        self._runner = asyncio.Runner()
        self._kept: Any = None
        self._user: dict[str, Any] = {}
        if os.getuid() == 0:
            owner = pwd.getpwnam("postgres")
            os.chown(self.directory, owner.pw_uid, owner.pw_gid)
            self._user = {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []}

    def initialise(self) -> None:
        options = ["-A", "trust", "-U", "kilonova", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync", "--no-instructions"]
        subprocess.run(
            [self.programs / "initdb", "-D", self.data, *options],
            check=True,
            stdout=subprocess.DEVNULL,
            cwd=self.directory,
            **self._user,
        )

    def start(self) -> None:
        settings = {
            "listen_addresses": "",
            "unix_socket_directories": str(self.directory),
            "fsync": "off",
            "full_page_writes": "off",
            "synchronous_commit": "off",
            "autovacuum": "off",
            "deadlock_timeout": "100ms",
            "max_connections": "200",
            "shared_buffers": "32MB",
            "dynamic_shared_memory_type": "mmap",
            "wal_level": "minimal",
            "max_wal_senders": "0",
        }
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [self.programs / "postgres", "-D", self.data, *(f"--{k}={v}" for k, v in settings.items())],
                stdout=log,
                stderr=log,
                cwd=self.directory,
                preexec_fn=_die_with_parent,
                process_group=0,  # Ctrl-C is for the tests, which then stop the server
                **self._user,
            )
        give_up = time.monotonic() + 60
        while self.process.poll() is None and time.monotonic() < give_up:
            if self._ready():
                return
            time.sleep(0.02)
        raise RuntimeError("PostgreSQL did not start:\n" + (self.directory / "log").read_text()[-2000:])

    def stop(self) -> None:
        """At once: there is nothing in it worth keeping."""
        if self.process is not None:
            self.process.send_signal(signal.SIGQUIT)
            self.process.wait(60)
            self.process = None

    def restart(self) -> None:
        """As an operator would: what is committed stays, every connection is cut."""
        assert self.process is not None
        self.process.send_signal(signal.SIGINT)
        self.process.wait(60)
        self.start()

    def remove(self) -> None:
        if self._kept is not None:
            self._kept.terminate()
            self._kept = None
        self._runner.close()
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    def url(self, name: str) -> str:
        return f"postgresql://kilonova@/{name}?host={self.directory}"

    def fresh(self) -> str:
        """The name of an empty database with the schema as the metadata has it now.

        It is always the same one, emptied: copying a template takes ten times as long.
        """
        if self._database is None:
            from kilonova.store.generate import tables_and_indexes

            self._database = self.create()
            self.run(tables_and_indexes("postgresql"), self._database)
            asyncio.run(self._learn(self._database))
        else:
            self._runner.run(self._empty(self._database))
        return self._database

    def create(self) -> str:
        """The name of a new database without any table."""
        name = f"test_{uuid.uuid4().hex}"
        self.run(f'CREATE DATABASE "{name}" TEMPLATE template0')
        return name

    def drop(self, name: str) -> None:
        self.run(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def run(self, sql: str, name: str = "postgres") -> None:
        asyncio.run(self._run(sql, name))

    async def _run(self, sql: str, name: str) -> None:
        async with self._connected(name) as connection:
            await connection.execute(sql)

    async def _learn(self, name: str) -> None:
        """Have the database know how it is emptied."""
        async with self._connected(name) as connection:
            rows = await connection.fetch("SELECT quote_ident(tablename) FROM pg_tables WHERE schemaname = 'public'")
            tables = "".join(ONE_TABLE.format(table=f"public.{row[0]}") for row in rows)
            await connection.execute(EMPTYING.format(tables=tables))

    async def _empty(self, name: str) -> None:
        async with asyncio.timeout(60):
            connection = await self._emptier(name)
            while await connection.fetchval(OTHERS):
                await asyncio.sleep(0.002)
            await connection.fetchval("SELECT support.empty()")

    async def _emptier(self, name: str) -> Any:
        """A connection that stays: a new one has to read all about the schema first. Tests may have cut it, though."""
        import asyncpg

        if self._kept is not None:
            try:
                await self._kept.execute("SELECT 1")
            except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
                self._kept.terminate()
                self._kept = None
        if self._kept is None:
            self._kept = await asyncpg.connect(self.url(name))
            await self._kept.execute("SET session_replication_role = replica")  # rows may go in any order
        return self._kept

    @asynccontextmanager
    async def _connected(self, name: str) -> AsyncIterator[Any]:
        import asyncpg

        connection = await asyncpg.connect(self.url(name))
        try:
            yield connection
        finally:
            await connection.close()

    def _ready(self) -> bool:
        asked = [self.programs / "pg_isready", "--quiet", "-h", self.directory]
        return subprocess.run(asked, check=False).returncode == 0


def _die_with_parent() -> None:
    """Strictly, with the thread that started it: the main one."""
    ctypes.CDLL(None).prctl(1, signal.SIGQUIT)
