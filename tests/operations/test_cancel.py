"""Cancel: between steps, inside steps, during waits and pauses; and where it comes too late."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from kilonova.operations import Cancelled, Failed, GoBack, Operation, Passing, Step, request_cancel, running
from kilonova.store import Database
from tests.operations.support import (
    Noted,
    Script,
    Three,
    Waiting,
    act,
    finished,
    row_of,
    start,
    steps_of,
    until,
    working,
)
from tests.support import run
from tests.support.databases import opened


class Firm(Noted):
    kind = "test firm"
    action = "firm"
    steps = (
        Step("firm", act("firm"), act("undo_firm"), deadline=300, cancellable=False),
        Step("after", act("after"), act("undo_after"), deadline=300),
    )


async def cancel(db: Database, identity: str) -> bool:
    async with db.transaction() as tx:
        return await request_cancel(tx, identity)


def check(script: Script, row: dict[str, Any]) -> None:
    assert row["state"] == "cancelled"
    assert [type(error) for error in script.failed] == [Cancelled]


def test_inside_a_step(database_url: str) -> None:
    async def scenario() -> None:
        async def two(op: Operation) -> None:
            try:
                await asyncio.sleep(600)
            finally:
                script.log.append("cleaned")

        script = Script(two=two)
        async with opened(database_url) as db, working(db, script, sweep=300):
            identity = await start(db, Three)
            await until(db, identity, lambda row: "two" in script.log)
            assert await cancel(db, identity)
            check(script, await finished(db, identity))
            assert script.log == ["one", "two", "cleaned", "undo_two", "undo_one", "failed"]
            assert ("two", "forward", "cancelled") in await steps_of(db, identity)
            assert not await cancel(db, identity)

    run(scenario())


def test_found_by_the_renewal_if_the_wake_got_lost(database_url: str, renewed_often: float) -> None:
    async def scenario() -> None:
        script = Script(two=lambda op: asyncio.sleep(600))
        async with opened(database_url) as db, working(db, script, sweep=300, lease=renewed_often):
            identity = await start(db, Three)
            await until(db, identity, lambda row: "two" in script.log)
            async with db.transaction() as tx:
                await tx.execute("UPDATE operations SET cancel_requested = TRUE")
            check(script, await finished(db, identity))

    run(scenario())


def test_a_step_that_is_not_cancellable_runs_to_its_end(database_url: str) -> None:
    async def scenario() -> None:
        async def firm(op: Operation) -> None:
            await cancel(op.db, op.id)
            await until(op.db, op.id, lambda row: op.cancelled)
            await asyncio.sleep(0.05)
            script.log.append("finished")

        script = Script(firm=firm)
        async with opened(database_url) as db, working(db, script):
            check(script, await finished(db, await start(db, Firm)))
            assert script.log[:2] == ["firm", "finished"]
            assert "after" not in script.log

    run(scenario())


def test_between_steps(database_url: str) -> None:
    async def scenario() -> None:
        async def one(op: Operation, tx: Any) -> None:
            await request_cancel(tx, op.id)

        script = Script(one=one)
        async with opened(database_url) as db, working(db, script):
            check(script, await finished(db, await start(db, Three)))
            assert "two" not in script.log
            assert "undo_one" in script.log

    run(scenario())


def test_during_a_wait_at_once(database_url: str) -> None:
    async def scenario() -> None:
        script = Script()
        async with opened(database_url) as db, working(db, script, sweep=300):
            identity = await start(db, Waiting, server_id="s")
            await until(db, identity, lambda row: row["state"] == "waiting")
            await cancel(db, identity)
            check(script, await finished(db, identity))
            assert script.log == ["ask", "undo_ask", "failed"]
            assert await db.fetch_value("SELECT COUNT(*) AS n FROM operation_waits") == 0

    run(scenario())


@pytest.mark.parametrize("in_memory", [False, True])
def test_during_a_pause_at_once(database_url: str, monkeypatch: pytest.MonkeyPatch, in_memory: bool) -> None:
    if in_memory:
        monkeypatch.setattr(running, "IN_MEMORY", 1000.0)

    async def scenario() -> None:
        async def two(op: Operation) -> None:
            raise Passing("away")

        script = Script(two=two)
        async with opened(database_url) as db, working(db, script, sweep=300, backoff=lambda attempt: 250.0):
            identity = await start(db, Three)
            row = await until(db, identity, lambda row: row["attempt"] == 1)
            assert row["state"] == ("running" if in_memory else "queued")
            await cancel(db, identity)
            check(script, await finished(db, identity))

    run(scenario())


def test_before_it_began(database_url: str) -> None:
    async def scenario() -> None:
        script = Script()
        async with opened(database_url) as db:
            identity = await start(db, Three)
            await cancel(db, identity)
            async with working(db, script):
                check(script, await finished(db, identity))
            assert not {"one", "two", "three"} & set(script.log)

    run(scenario())


@pytest.mark.parametrize("error", [Failed("aborted"), GoBack("one", reason="elsewhere")])
def test_a_step_that_fails_because_of_the_cancel_is_cancelled(database_url: str, error: Exception) -> None:
    async def scenario() -> None:
        async def firm(op: Operation) -> None:
            await cancel(op.db, op.id)
            await until(op.db, op.id, lambda row: op.cancelled)
            raise error

        script = Script(firm=firm)
        async with opened(database_url) as db, working(db, script):
            identity = await start(db, Firm)
            check(script, await finished(db, identity))
            assert script.count("firm") == 1

    run(scenario())


def test_too_late_while_undoing(database_url: str) -> None:
    async def scenario() -> None:
        async def two(op: Operation) -> None:
            raise Failed("no")

        async def undo_two(op: Operation) -> None:
            await cancel(op.db, op.id)
            await asyncio.sleep(0.05)

        script = Script(two=two, undo_two=undo_two)
        async with opened(database_url) as db, working(db, script):
            row = await finished(db, await start(db, Three))
            assert (row["state"], orjson.loads(row["error"])["message"]) == ("failed", "no")
            assert script.count("undo_two") == 1

    run(scenario())


def test_while_going_back(database_url: str) -> None:
    async def scenario() -> None:
        async def two(op: Operation) -> None:
            raise GoBack("two", reason="again")

        async def undo_two(op: Operation) -> None:
            if script.count("undo_two") == 1:
                await cancel(op.db, op.id)
                await asyncio.sleep(0.05)

        script = Script(two=two, undo_two=undo_two)
        async with opened(database_url) as db, working(db, script):
            check(script, await finished(db, await start(db, Three)))
            assert script.count("two") == 1

    run(scenario())


def test_too_late_when_done(database_url: str) -> None:
    async def scenario() -> None:
        async def three(op: Operation) -> None:
            await cancel(op.db, op.id)

        class Ended(Operation, register=False):
            kind = "test ended"
            action = "end"
            steps = (Step("three", act("three"), act("undo"), deadline=300, cancellable=False),)

        async with opened(database_url) as db, working(db, Script(three=three), kinds=[Ended]):
            identity = await start(db, Ended)
            assert (await finished(db, identity))["state"] == "done"
            assert not await cancel(db, identity)
            assert (await row_of(db, identity))["cancel_requested"]

    run(scenario())
