"""Snapshot, metadata and revisions create the same schema."""

from __future__ import annotations

from pathlib import Path

import pytest

from kilonova.store import alembic_commands, generate, migrate
from kilonova.store.migrations.head import HEAD
from kilonova.store.schema import metadata
from kilonova.store.url import dialect_of
from tests.store.catalogue import Catalogue, catalogue
from tests.store.revisions import create_at, run_script
from tests.support import run
from tests.support.databases import DIALECTS, opened

both_empty = pytest.mark.parametrize("empty_url", DIALECTS, indirect=True)


async def read_catalogue(url: str) -> Catalogue:
    async with opened(url) as db:
        return await catalogue(db)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_snapshot_file_is_current(dialect: str) -> None:
    assert migrate.snapshot(dialect) == generate.snapshot(dialect, HEAD), "run `make schema`"


def test_head_is_the_newest_revision() -> None:
    from alembic.script import ScriptDirectory

    script = ScriptDirectory.from_config(alembic_commands.configuration())
    assert script.get_heads() == [HEAD]
    assert generate.list_revisions()[-1] == HEAD


@both_empty
def test_snapshot_creates_the_schema_of_the_metadata(empty_url: str, request: pytest.FixtureRequest) -> None:
    database_url = request.getfixturevalue(f"{dialect_of(empty_url)}_url")

    async def scenario() -> None:
        await migrate.upgrade(empty_url)
        made = await read_catalogue(empty_url)
        version = made.pop("alembic_version")
        assert "version_num" in str(version)
        assert made == await read_catalogue(database_url)
        assert set(made) == set(metadata.tables)

    run(scenario())


@both_empty
def test_revisions_create_the_schema_of_the_snapshot(empty_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        await create_at(empty_url, "head")
        if empty_url.startswith("sqlite"):
            fresh = f"sqlite://{tmp_path}/fresh.db"
            await migrate.upgrade(fresh)
            assert await read_catalogue(empty_url) == await read_catalogue(fresh)
        else:
            by_revisions = await read_catalogue(empty_url)
            await run_script(empty_url, "DROP SCHEMA public CASCADE; CREATE SCHEMA public")
            await migrate.upgrade(empty_url)
            assert by_revisions == await read_catalogue(empty_url)
        assert await migrate.revision(empty_url) == HEAD

    run(scenario())


def test_alembic_finds_no_differences_after_revisions(tmp_path: Path) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    path = tmp_path / "x.db"
    alembic_commands.upgrade_sqlite(path)
    with alembic_commands.sqlite_connection(path) as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []


def test_constraint_names_are_unique_and_fit_postgresql() -> None:
    constraints = [each for table in metadata.tables.values() for each in (*table.constraints, *table.indexes)]
    names = [str(each.name) for each in constraints if each.name is not None]
    assert len(names) == len(constraints)
    assert [name for name in names if len(name) > 63] == []
    assert len(names) == len(set(names))
