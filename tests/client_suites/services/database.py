"""A temporary PostgreSQL for a service."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.databases import find_postgresql, temporary_postgresql


@contextmanager
def new_database() -> Iterator[str]:
    """The URL of a new database, for SQLAlchemy with psycopg2."""
    programs = find_postgresql()
    if programs is None:
        raise RuntimeError("PostgreSQL is missing (/usr/lib/postgresql/*/bin). On Debian: apt install postgresql")
    with temporary_postgresql(programs) as server:
        yield server.url(server.create()).replace("postgresql:", "postgresql+psycopg2:", 1)
