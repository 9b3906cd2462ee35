"""Databases at older revisions of the schema."""

from __future__ import annotations

from kilonova.store import alembic_commands
from kilonova.store.url import sqlite_path


async def create_at(url: str, revision: str) -> None:
    """Create the schema of a revision in an empty database."""
    if url.startswith("sqlite"):
        alembic_commands.upgrade_sqlite(sqlite_path(url), revision)
    else:
        await run_script(url, alembic_commands.upgrade_script("postgresql", None, revision))


async def run_script(url: str, script: str) -> None:
    """Run a script with the driver: the interface runs one statement at a time."""
    if url.startswith("sqlite"):
        import apsw

        connection = apsw.Connection(str(sqlite_path(url)))
        connection.execute(script)
        connection.close()
    else:
        import asyncpg

        connection = await asyncpg.connect(url)
        await connection.execute(script)
        await connection.close()
