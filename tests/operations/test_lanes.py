"""Operations of a lane have a worker of their own."""

from __future__ import annotations

import asyncio

from kilonova.operations import Operation, Step
from tests.operations.support import Script, act, finished, row_of, start, working
from tests.support import run
from tests.support.databases import opened


class Aside(Operation, register=False):
    kind = "test aside"
    action = ""
    lane = "aside"
    steps = (Step("only", act("only"), act("undo"), deadline=300),)


class Plain(Operation, register=False):
    kind = "test plain"
    action = ""
    steps = (Step("only", act("only"), act("undo"), deadline=300),)


def test_each_worker_takes_its_lane_and_is_woken_for_it(database_url: str) -> None:
    async def scenario() -> None:
        kinds = (Aside, Plain)
        async with opened(database_url) as db:
            async with working(db, Script(), sweep=300, kinds=kinds, lane=""):
                left = await start(db, Aside)
                await finished(db, await start(db, Plain))
                assert (await row_of(db, left))["epoch"] == 0
            async with working(db, Script(), sweep=300, kinds=kinds, lane="aside"):
                await finished(db, left)
                await asyncio.sleep(0.1)
                await finished(db, await start(db, Aside))

    run(scenario())


def test_a_worker_of_no_lane_takes_all(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with opened(sqlite_url) as db, working(db, Script(), sweep=300, kinds=(Aside, Plain)):
            await asyncio.sleep(0.1)
            for kind in (Aside, Plain):
                await finished(db, await start(db, kind))

    run(scenario())
