"""Runs Alembic's upgrades. It imports SQLAlchemy, which is slow, so import this module late."""

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

from kilonova.store.interface import SchemaError

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
    """One transaction, including DDL, on a SQLite file. Commits at the end.

    Foreign keys are off, because altering a table replaces it. The store must not be open meanwhile: when one copy of
    the SQLite library closes a file, the process loses the locks of all other copies.
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
        with _schema_errors():
            command.upgrade(configuration(connection=connection), revision)
        broken = connection.exec_driver_sql("PRAGMA foreign_key_check").fetchall()
        if broken:
            raise SchemaError(f"the upgrade would leave {len(broken)} rows with invalid foreign keys")


def upgrade_script(dialect: str, current: str | None, revision: str = "head") -> str:
    """The SQL script that upgrades a database from its current revision."""
    config = configuration(dialect=dialect)
    config.output_buffer = written = io.StringIO()
    with _schema_errors():
        command.upgrade(config, f"{current or 'base'}:{revision}", sql=True)
    return written.getvalue()


@contextmanager
def _schema_errors() -> Iterator[None]:
    try:
        yield
    except CommandError as error:
        raise SchemaError(f"this release cannot upgrade the database: {error}") from error
