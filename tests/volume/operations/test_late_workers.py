"""Workers that lost their lease or the response of the database must not remove the volume's content."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from kilonova.operations.row import OperationRow
from kilonova.store import Row
from kilonova.volume.operations.replace_content import ReimageVolume, remove_new_content, write
from tests.support import run
from tests.support.databases import opened
from tests.volume.operations.worlds import OTHER, World, make_volume, make_world, on_disk, put_image, start


@asynccontextmanager
async def reimaging(url: str) -> AsyncIterator[tuple[World, Row]]:
    """A volume and the row of an operation that would re-image it. No worker runs."""
    async with opened(url) as db:
        world = await make_world(db)
        async with world.stack:
            world.volume_id = await make_volume(world, {"image": world.image_id})
            image_id = await put_image(world, OTHER)
            async with db.transaction() as tx:
                identity = await start(tx, ReimageVolume, volume_id=world.volume_id, image_id=image_id)
            row = await db.fetch_one("SELECT * FROM operations WHERE id = $1", identity)
            assert row is not None
            yield world, row


def leased(world: World, row: Row, epoch: int, attempt: int = 0) -> ReimageVolume:
    """The operation as the worker with this epoch sees it."""
    operation = OperationRow.decode({**row, "epoch": epoch, "attempt": attempt})
    return ReimageVolume(operation, services=world, db=world.db)


@pytest.mark.parametrize("late", [(2, 0), (3, 0), (3, 1)], ids=["lost its lease", "lost a response", "late retry"])
def test_late_worker_keeps_files_of_later_runs(sqlite_url: str, late: tuple[int, int]) -> None:
    async def scenario() -> None:
        async with reimaging(sqlite_url) as (world, row):
            created = await write(leased(world, row, 3, 1))
            await write(leased(world, row, *late))
            assert f"{world.volume_id}.{created.data_id}" in on_disk(world)

    run(scenario())


@pytest.mark.parametrize("later", [(3, 2), (4, 0), (12, 0)])
def test_files_of_earlier_runs_are_removed(sqlite_url: str, later: tuple[int, int]) -> None:
    async def scenario() -> None:
        async with reimaging(sqlite_url) as (world, row):
            before = on_disk(world)
            await write(leased(world, row, 3, 1))
            created = await write(leased(world, row, *later))
            assert on_disk(world) == sorted([*before, f"{world.volume_id}.{created.data_id}"])
            await remove_new_content(leased(world, row, later[0]))
            assert on_disk(world) == before, "undone"

    run(scenario())
