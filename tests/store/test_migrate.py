"""Schema upgrades of new, older and newer databases, and of other applications."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kilonova import __version__, store
from kilonova.store import SchemaError, StoreError, Unavailable, alembic_commands, migrate
from kilonova.store.migrate import Upgrade, revision, upgrade
from kilonova.store.migrations.head import HEAD
from kilonova.store.schema import metadata
from tests.support import run
from tests.support.databases import DIALECTS, opened

both_empty = pytest.mark.parametrize("empty_url", DIALECTS, indirect=True)

NEXT = '''
"""A revision that adds, fills and requires a column."""

import sqlalchemy as sa
from alembic import op

revision = "9999"
down_revision = "{head}"


def upgrade() -> None:
    with op.batch_alter_table("domains") as batch:
        batch.add_column(sa.Column("colour", sa.Text(), nullable=True))
    op.execute("UPDATE domains SET colour = 'blue'")
    with op.batch_alter_table("domains") as batch:
        batch.alter_column("colour", existing_type=sa.Text(), nullable=False)
    {then}
'''


@pytest.fixture
def next_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Simulates a release with one more revision. Returns the path of its file."""
    directory = tmp_path / "migrations"
    shutil.copytree(migrate.MIGRATIONS, directory, ignore=shutil.ignore_patterns("__pycache__"))
    path = directory / "versions" / "9999_next.py"
    path.write_text(NEXT.format(head=HEAD, then=""))
    monkeypatch.setattr(alembic_commands, "MIGRATIONS", directory)
    monkeypatch.setattr(migrate, "HEAD", "9999")
    monkeypatch.setattr(migrate, "OLDEST_COMPATIBLE", "9999")
    return path


def insert_statement(table: str, **given: Any) -> tuple[str, list[Any]]:
    """An INSERT with values for all columns that are not nullable."""
    values = dict(given)
    for column in metadata.tables[table].columns:
        if not column.nullable and column.name not in values:
            values[column.name] = column.type.python_type()
    parameters = ", ".join(f"${place + 1}" for place in range(len(values)))
    return f"INSERT INTO {table} ({', '.join(values)}) VALUES ({parameters})", list(values.values())


async def create_with_domain(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A database of the previous release."""
    with monkeypatch.context() as patch:
        patch.setattr(migrate, "HEAD", HEAD)
        await upgrade(url)
    async with opened(url) as db:
        async with db.transaction() as tx:
            for sql, args in (
                insert_statement("domains", id="d", name="Default", enabled=True),
                insert_statement("projects", id="p", domain_id="d"),
            ):
                await tx.execute(sql, *args)


@both_empty
def test_new_database_is_created_once(empty_url: str) -> None:
    async def scenario() -> None:
        assert await revision(empty_url) is None
        assert await upgrade(empty_url) == Upgrade(None, HEAD)
        assert await revision(empty_url) == HEAD
        assert await upgrade(empty_url) == Upgrade(HEAD, HEAD)
        async with opened(empty_url) as db:
            assert await db.fetch("SELECT version_num FROM alembic_version") == [{"version_num": HEAD}]

    run(scenario())


@both_empty
def test_concurrent_first_starts(empty_url: str) -> None:
    async def scenario() -> None:
        done = await asyncio.gather(*(upgrade(empty_url) for _ in range(6)))
        assert {each.after for each in done} == {HEAD}
        assert [each.before for each in done].count(None) >= 1
        assert await revision(empty_url) == HEAD

    run(scenario())


@both_empty
def test_upgrade_keeps_rows(empty_url: str, next_release: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        await create_with_domain(empty_url, monkeypatch)
        assert await upgrade(empty_url) == Upgrade(HEAD, "9999")
        assert await upgrade(empty_url) == Upgrade("9999", "9999")
        async with opened(empty_url) as db:
            assert await db.fetch("SELECT name, enabled, colour FROM domains") == [
                {"name": "Default", "enabled": True, "colour": "blue"}
            ]
            assert await db.fetch_value("SELECT domain_id FROM projects") == "d"

    run(scenario())


@both_empty
def test_failed_revision_changes_nothing(empty_url: str, next_release: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        next_release.write_text(NEXT.format(head=HEAD, then='op.execute("INSERT INTO nowhere VALUES (1)")'))
        await create_with_domain(empty_url, monkeypatch)
        with pytest.raises(Exception, match="nowhere"):
            await upgrade(empty_url)
        assert await revision(empty_url) == HEAD
        async with opened(empty_url) as db:
            assert "colour" not in (await db.fetch("SELECT * FROM domains"))[0]

    run(scenario())


def test_revision_that_breaks_foreign_keys_is_refused(
    tmp_path: Path, next_release: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        url = f"sqlite://{tmp_path}/x.db"
        next_release.write_text(NEXT.format(head=HEAD, then='op.execute("DELETE FROM domains")'))
        await create_with_domain(url, monkeypatch)
        with pytest.raises(SchemaError, match="foreign keys"):
            await upgrade(url)
        async with opened(url) as db:
            assert await db.fetch_value("SELECT count(*) FROM domains") == 1

    run(scenario())


@both_empty
def test_newer_database_is_refused(empty_url: str) -> None:
    async def scenario() -> None:
        await upgrade(empty_url)
        async with opened(empty_url) as db:
            async with db.transaction() as tx:
                await tx.execute("UPDATE alembic_version SET version_num = '7777'")
        with pytest.raises(SchemaError, match="7777"):
            await upgrade(empty_url)

    run(scenario())


@both_empty
def test_database_of_another_application_is_refused(empty_url: str) -> None:
    async def scenario() -> None:
        async with opened(empty_url) as db:
            async with db.transaction() as tx:
                await tx.execute("CREATE TABLE theirs (id TEXT)")
        with pytest.raises(SchemaError, match="another application"):
            await upgrade(empty_url)

    run(scenario())


def test_unreachable_and_invalid_databases_are_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        with pytest.raises(Unavailable):
            await upgrade(f"postgresql://kilonova@/none?host={tmp_path}")
        for url in ("mysql://here/x", "sqlite://", ""):
            with pytest.raises(ValueError, match="database URL"):
                await upgrade(url)
        (tmp_path / "text.db").write_text("not a database at all, but long enough to be looked at" * 20)
        with pytest.raises(StoreError):
            await upgrade(f"sqlite://{tmp_path}/text.db")

    run(scenario())


def test_first_start_imports_neither_sqlalchemy_nor_asyncpg(tmp_path: Path) -> None:
    program = f"""
import asyncio, sys
from kilonova.store import open_database, upgrade

async def main():
    for _ in range(2):
        await upgrade("sqlite://{tmp_path}/x.db")
        db = await open_database("sqlite://{tmp_path}/x.db")
        await db.close()

asyncio.run(main())
print(*sorted({{name.partition(".")[0] for name in sys.modules}} & {{"sqlalchemy", "alembic", "asyncpg", "mako"}}))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


@pytest.mark.parametrize("empty_url", ["postgresql"], indirect=True)
def test_upgrade_waits_until_processes_of_older_releases_have_stopped(
    empty_url: str, next_release: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = empty_url

    async def scenario() -> None:
        await create_with_domain(url, monkeypatch)
        async with opened(url) as db:
            with pytest.raises(SchemaError, match=rf"kilonova {__version__} \(schema {HEAD}\) on {os.getpid()}@"):
                await upgrade(url)
            assert await revision(url) == HEAD
            monkeypatch.setattr(migrate, "OLDEST_COMPATIBLE", HEAD)
            assert await upgrade(url) == Upgrade(HEAD, "9999")
            with pytest.raises(SchemaError, match="upgraded to schema 9999 meanwhile"):  # before it has noticed
                monkeypatch.setattr(migrate, "HEAD", HEAD)
                await store.check(db)

    run(scenario())


@pytest.mark.parametrize("empty_url", ["postgresql"], indirect=True)
def test_forced_upgrade_and_sessions_of_unknown_releases(
    empty_url: str, next_release: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = empty_url

    async def scenario() -> None:
        import asyncpg

        await create_with_domain(url, monkeypatch)
        older = await asyncpg.connect(url, server_settings={"application_name": "kilonova listener"})
        with pytest.raises(SchemaError, match="an older release on this machine"):
            await upgrade(url)
        other = await asyncpg.connect(url, server_settings={"application_name": "psql"})
        assert await upgrade(url, force=True) == Upgrade(HEAD, "9999")
        await older.close()
        await other.close()

    run(scenario())
