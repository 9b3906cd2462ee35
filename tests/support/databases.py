"""A fresh database for each test: SQLite, and PostgreSQL from a server started by the test run.

def test_something(database_url):            # runs once on each
    async def scenario():
        async with opened(database_url) as db: ...
    run(scenario())
"""

from __future__ import annotations

import asyncio
import atexit
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

from kilonova.store import Database, open_database
from tests.support.parent_death import die_with_parent
from tests.support.soak_delays import DELAYS

DIALECTS = ("sqlite", "postgresql")

# A function, because a session caches its query plans.
CREATE_EMPTY_FUNCTION = """
CREATE SCHEMA support;
-- The tables of the schema, to distinguish them from tables created by tests.
CREATE TABLE support.schema_tables AS SELECT tablename FROM pg_tables WHERE schemaname = 'public';
CREATE FUNCTION support.empty() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    name text;
BEGIN
    FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = 'public'
            AND tablename NOT IN (SELECT tablename FROM support.schema_tables) LOOP
        EXECUTE format('DROP TABLE %I CASCADE', name);
    END LOOP;
    {tables}
    FOR name IN SELECT sequencename FROM pg_sequences WHERE last_value IS NOT NULL LOOP
        EXECUTE format('ALTER SEQUENCE %I RESTART', name);
    END LOOP;
END $$;
"""
EMPTY_TABLE = """
    IF pg_relation_size('{table}'::regclass) > 1000000 THEN
        TRUNCATE {table} CASCADE;
    ELSIF EXISTS (SELECT 1 FROM {table}) THEN
        DELETE FROM {table};
    END IF;
"""

# Connections of killed processes may still commit.
TERMINATE_OTHER_CONNECTIONS = """
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
    """The URL of a fresh database with the schema."""
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
    programs = find_postgresql()
    if programs is None:
        if os.environ.get("KILONOVA_REQUIRE_ALL") == "1":
            pytest.fail("PostgreSQL is not installed, and KILONOVA_REQUIRE_ALL=1")
        pytest.skip("PostgreSQL is not installed (/usr/lib/postgresql/*/bin)")
    with temporary_postgresql(programs) as server:
        yield server


def find_postgresql() -> Path | None:
    """The directory of the newest server's programs."""
    return max((path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/postgres")), default=None)


@contextmanager
def temporary_postgresql(programs: Path) -> Iterator[PostgresServer]:
    """A server with the programs of this directory."""
    server = PostgresServer(programs)
    atexit.register(server.remove)
    try:
        server.initialise()
        server.start()
        yield server
    finally:
        server.remove()


@cache
def sqlite_template() -> Path:
    """A closed database file with the current schema of the metadata."""
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
    """A temporary server on a Unix socket, run by a user other than root. It ends with the test process."""

    def __init__(self, programs: Path) -> None:
        self.programs = programs
        self.directory = Path(tempfile.mkdtemp(prefix="kilonova-postgresql-"))
        self.directory.chmod(0o755)
        self.data = self.directory / "data"
        self.process: subprocess.Popen[bytes] | None = None
        self._database: str | None = None
        self._runner = asyncio.Runner()
        self._connection: Any = None
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
                # The thread that starts the server is the main thread.
                preexec_fn=partial(die_with_parent, signal.SIGQUIT),
                process_group=0,  # Ctrl-C is for the tests, which then stop the server
                **self._user,
            )
        deadline = time.monotonic() + 60
        while self.process.poll() is None and time.monotonic() < deadline:
            if self._ready():
                return
            time.sleep(0.02)
        raise RuntimeError("PostgreSQL did not start:\n" + (self.directory / "log").read_text()[-2000:])

    def stop(self) -> None:
        """Stop immediately, without saving data."""
        if self.process is not None:
            self.process.send_signal(signal.SIGQUIT)
            self.process.wait(60)
            self.process = None

    def restart(self) -> None:
        """Restart as an operator does: committed data stay, connections are closed."""
        assert self.process is not None
        self.process.send_signal(signal.SIGINT)
        self.process.wait(60)
        self.start()

    def remove(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None
        self._runner.close()
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    def url(self, name: str) -> str:
        return f"postgresql://kilonova@/{name}?host={self.directory}"

    def fresh(self) -> str:
        """The name of an empty database with the current schema of the metadata.

        All tests use the same database, which is emptied before each: copying a template takes ten times as long.
        """
        if self._database is None:
            from kilonova.store.generate import tables_and_indexes

            self._database = self.create()
            self.run(tables_and_indexes("postgresql"), self._database)
            asyncio.run(self._create_empty_function(self._database))
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

    async def _create_empty_function(self, name: str) -> None:
        """Create the function that empties all tables."""
        async with self._connected(name) as connection:
            rows = await connection.fetch("SELECT quote_ident(tablename) FROM pg_tables WHERE schemaname = 'public'")
            tables = "".join(EMPTY_TABLE.format(table=f"public.{row[0]}") for row in rows)
            await connection.execute(CREATE_EMPTY_FUNCTION.format(tables=tables))

    async def _empty(self, name: str) -> None:
        async with asyncio.timeout(60):
            connection = await self._persistent_connection(name)
            while await connection.fetchval(TERMINATE_OTHER_CONNECTIONS):
                await asyncio.sleep(0.002)
            await connection.fetchval("SELECT support.empty()")

    async def _persistent_connection(self, name: str) -> Any:
        """A connection for all tests, because a new one must read the schema first. Reconnects if a test closed it."""
        import asyncpg

        if self._connection is not None:
            try:
                await self._connection.execute("SELECT 1")
            except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
                self._connection.terminate()
                self._connection = None
        if self._connection is None:
            self._connection = await asyncpg.connect(self.url(name))
            await self._connection.execute("SET session_replication_role = replica")  # rows may be deleted in any order
        return self._connection

    @asynccontextmanager
    async def _connected(self, name: str) -> AsyncIterator[Any]:
        import asyncpg

        connection = await asyncpg.connect(self.url(name))
        try:
            yield connection
        finally:
            await connection.close()

    def _ready(self) -> bool:
        command = [self.programs / "pg_isready", "--quiet", "-h", self.directory]
        return subprocess.run(command, check=False).returncode == 0
