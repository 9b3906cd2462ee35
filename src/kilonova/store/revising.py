"""Alembic at work: the only part of the store that needs SQLAlchemy when the program runs, so import it late."""

from __future__ import annotations

import io
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy import Connection, create_engine, event
from sqlalchemy.pool import NullPool

from kilonova.store.port import SchemaError

MIGRATIONS = Path(__file__).parent / "migrations"


def configuration(**attributes: Any) -> Config:
    config = Config(stdout=io.StringIO())
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.set_main_option("file_template", "%%(rev)s_%%(slug)s")
    config.attributes.update(attributes)
    return config


@contextmanager
def sqlite_connection(path: Path | str) -> Iterator[Connection]:
    """One transaction on a SQLite file, DDL included; committed at the end.

    Foreign keys are off, since altering a table replaces it. SQLite forgets a process's locks on a file when any other
    copy of the library in that process closes it, so the store must not be open meanwhile.
    """

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(path, timeout=10, isolation_level=None)
        connection.execute("PRAGMA foreign_keys = OFF")
        return connection

    engine = create_engine("sqlite://", creator=connect, poolclass=NullPool)
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
    with engine.begin() as connection:
        yield connection


def upgrade_sqlite(path: Path, revision: str = "head") -> None:
    with sqlite_connection(path) as connection:
        with _refusals():
            command.upgrade(configuration(connection=connection), revision)
        broken = connection.exec_driver_sql("PRAGMA foreign_key_check").fetchall()
        if broken:
            raise SchemaError(f"the upgrade would leave {len(broken)} rows without what they refer to")


def script(dialect: str, current: str | None, revision: str = "head") -> str:
    """The statements that bring a database from its current revision to another."""
    config = configuration(dialect=dialect)
    config.output_buffer = written = io.StringIO()
    with _refusals():
        command.upgrade(config, f"{current or 'base'}:{revision}", sql=True)
    return written.getvalue()


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except CommandError as error:
        raise SchemaError(f"this release cannot upgrade the database: {error}") from error
