"""Waits: events before, during and never; polls; nothing held meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from kilonova import clock
from kilonova.operations import Failed, GoBack, Operation, Passing, Step, Wait, events, post_event, store
from kilonova.store import Database
from tests.operations.support import Noted, Script, Waiting, act, finished, idle, row_of, start, until, working
from tests.support import run
from tests.support.databases import opened


def is_waiting(row: dict[str, Any]) -> bool:
    return bool(row["state"] == "waiting")


async def post(db: Database, key: str, payload: Any = None) -> bool:
    async with db.transaction() as tx:
        return await post_event(tx, key, payload)


async def rows_left(db: Database) -> tuple[int, int]:
    waits = await db.fetch_value("SELECT COUNT(*) AS n FROM operation_waits")
    return waits, await db.fetch_value("SELECT COUNT(*) AS n FROM operation_events")


def test_an_event_ends_the_wait_at_once(database_url: str) -> None:
    async def scenario() -> None:
        script = Script()
        async with opened(database_url) as db, working(db, script, sweep=300) as worker:
            identity = await start(db, Waiting, server_id="s")
            row = await until(db, identity, is_waiting)
            assert (row["lease_owner"], row["lease_until"], row["step"]) == (None, 0, "hear")
            await idle(worker)
            assert await post(db, "answer:s", {"status": "completed"})
            row = await finished(db, identity)
            assert orjson.loads(row["results"]) == {"hear": {"status": "completed"}}
            assert (row["state"], script.log, await rows_left(db)) == ("done", ["ask", "use"], (0, 0))

    run(scenario())


def test_an_event_that_comes_first_is_found(database_url: str) -> None:
    async def scenario() -> None:
        async def ask(op: Operation) -> None:
            assert not await post(op.db, f"answer:{op.server_id}", 7)

        async with opened(database_url) as db, working(db, Script(ask=ask)):
            row = await finished(db, await start(db, Waiting, server_id="s"))
            assert (row["state"], orjson.loads(row["results"])) == ("done", {"hear": 7})
            assert await rows_left(db) == (0, 0)

    run(scenario())


def test_waits_and_events_at_the_same_moment_never_miss_each_other(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as db, working(db, Script(), sweep=300):

            async def both(number: int) -> None:
                identity = await start(db, Waiting, server_id=f"s{number}")
                await asyncio.sleep(0.0005 * number)
                await post(db, f"answer:s{number}", number)
                assert (await finished(db, identity))["state"] == "done"

            await asyncio.gather(*(both(number) for number in range(40)))

    run(scenario())


def test_an_event_of_an_earlier_operation_is_not_taken(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as db, working(db, Script()):
            await post(db, "answer:s", "stale")
            await asyncio.sleep(0.01)
            identity = await start(db, Waiting, server_id="s")
            await until(db, identity, is_waiting)
            await post(db, "answer:s", "fresh")
            assert orjson.loads((await finished(db, identity))["results"]) == {"hear": "fresh"}

    run(scenario())


class Short(Noted):
    kind = "test short wait"
    action = "short"
    steps = (
        Step("ask", act("ask"), act("undo_ask"), deadline=300),
        Wait("hear", key=lambda op: "short", deadline=0.3, poll=act("poll"), poll_every=0.1),
    )


class Polled(Noted):
    kind = "test polled wait"
    action = "polled"
    steps = (Wait("hear", key=lambda op: "short", deadline=300, poll=act("poll"), poll_every=0.1),)


def test_a_wait_fails_at_its_deadline_like_a_step(database_url: str) -> None:
    async def scenario() -> None:
        script = Script()
        async with opened(database_url) as db, working(db, script, sweep=300):
            row = await finished(db, await start(db, Short))
            assert (row["state"], orjson.loads(row["error"])["type"]) == ("failed", "TimedOut")
            # How many of its three polls come in time is up to the machine.
            assert script.count("poll") <= 4
            assert script.log[-2:] == ["undo_ask", "failed"]
            assert await rows_left(db) == (0, 0)

    run(scenario())


@pytest.mark.parametrize("trouble", [False, True])
def test_a_poll_finds_a_lost_event(database_url: str, trouble: bool) -> None:
    async def poll(op: Operation) -> Any:
        if trouble and script.count("poll") == 1:
            raise Passing("service away")
        return {"seen": script.count("poll")} if script.count("poll") == 2 else None

    script = Script(poll=poll)

    async def scenario() -> None:
        async with opened(database_url) as db, working(db, script, sweep=300):
            row = await finished(db, await start(db, Polled))
            assert (row["state"], orjson.loads(row["results"])) == ("done", {"hear": {"seen": 2}})
            assert await rows_left(db) == (0, 0)

    run(scenario())


def test_an_event_during_a_poll_is_not_lost(database_url: str) -> None:
    async def poll(op: Operation) -> None:
        await post(op.db, "short", "meanwhile")

    async def scenario() -> None:
        async with opened(database_url) as db, working(db, Script(poll=poll), sweep=300):
            row = await finished(db, await start(db, Polled))
            assert orjson.loads(row["results"]) == {"hear": "meanwhile"}

    run(scenario())


class Judged(Noted):
    kind = "test judged"
    action = "judge"

    @staticmethod
    def judge(op: Operation, payload: Any) -> Any:
        if payload == "bad":
            raise Failed("the other side said no")
        if payload == "elsewhere":
            raise GoBack("ask", reason="try there")
        return payload

    steps = lambda: (  # noqa: E731
        Step("ask", act("ask"), act("undo_ask"), deadline=300),
        Wait("hear", key=lambda op: "judged", deadline=300, arrived=Judged.judge),
    )


@pytest.mark.parametrize("answers, state", [(["good"], "done"), (["bad"], "failed"), (["elsewhere", "good"], "done")])
def test_what_arrives_can_be_judged(database_url: str, answers: list[str], state: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as db, working(db, Script()):
            identity = await start(db, Judged)
            for number, answer in enumerate(answers, 1):
                await until(db, identity, lambda row, number=number: is_waiting(row) and row["round"] == number)
                await post(db, "judged", answer)
            assert (await finished(db, identity))["state"] == state
            assert await rows_left(db) == (0, 0)

    run(scenario())


def test_a_wait_survives_the_worker(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as db:
            async with working(db, Script()):
                identity = await start(db, Waiting, server_id="s")
                await until(db, identity, is_waiting)
            await post(db, "answer:s", 1)
            assert (await row_of(db, identity))["state"] == "queued"
            async with working(db, Script()):
                assert (await finished(db, identity))["state"] == "done"

    run(scenario())


def test_stale_events_are_forgotten(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as db:
            await post(db, "new")
            async with db.transaction() as tx:
                await tx.execute(
                    "INSERT INTO operation_events (key, payload, created_at) VALUES ('old', '1', $1)",
                    clock.now() - events.STALE_AFTER - 1,
                )
            await store.tidy(db, ["x"])
            assert [row["key"] for row in await db.fetch("SELECT key FROM operation_events")] == ["new"]

    run(scenario())
