"""Operations of a lane run in a separate worker."""

from __future__ import annotations

import asyncio

from kilonova.operations import Operation, Step
from tests.operations.support import (
    ScriptedServices,
    begin_operation,
    get_row,
    running_worker,
    scripted,
    wait_until_finished,
)
from tests.support import run
from tests.support.databases import opened


class LaneOperation(Operation, register=False):
    kind = "test aside"
    action = ""
    lane = "aside"
    steps = (Step("only", scripted("only"), scripted("undo"), deadline=300),)


class PlainOperation(Operation, register=False):
    kind = "test plain"
    action = ""
    steps = (Step("only", scripted("only"), scripted("undo"), deadline=300),)


def test_worker_of_a_lane_runs_only_its_lane(database_url: str) -> None:
    async def scenario() -> None:
        kinds = (LaneOperation, PlainOperation)
        async with opened(database_url) as db:
            async with running_worker(db, ScriptedServices(), sweep=300, kinds=kinds, lane=""):
                left = await begin_operation(db, LaneOperation)
                await wait_until_finished(db, await begin_operation(db, PlainOperation))
                assert (await get_row(db, left))["epoch"] == 0
            async with running_worker(db, ScriptedServices(), sweep=300, kinds=kinds, lane="aside"):
                await wait_until_finished(db, left)
                await asyncio.sleep(0.1)
                await wait_until_finished(db, await begin_operation(db, LaneOperation))

    run(scenario())


def test_worker_without_lane_runs_all_lanes(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with (
            opened(sqlite_url) as db,
            running_worker(db, ScriptedServices(), sweep=300, kinds=(LaneOperation, PlainOperation)),
        ):
            await asyncio.sleep(0.1)
            for kind in (LaneOperation, PlainOperation):
                await wait_until_finished(db, await begin_operation(db, kind))

    run(scenario())
