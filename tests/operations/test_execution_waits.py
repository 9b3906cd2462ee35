"""Waits for events: early, late and lost events, polls, and no lease meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from kilonova import clock
from kilonova.operations import (
    Failed,
    GoBack,
    Operation,
    Step,
    StepResult,
    TransientError,
    Wait,
    events,
    post_event,
    store,
)
from kilonova.store import Database
from tests.operations.support import (
    RecordedFailure,
    ScriptedServices,
    WaitingOperation,
    begin_operation,
    get_row,
    running_worker,
    scripted,
    wait_until,
    wait_until_finished,
    wait_until_idle,
)
from tests.support import run
from tests.support.databases import opened

HEAR = StepResult("hear", object)


def is_waiting(row: dict[str, Any]) -> bool:
    return bool(row["state"] == "waiting")


async def post(db: Database, key: str, payload: Any = None) -> bool:
    async with db.transaction() as tx:
        return await post_event(tx, key, payload)


async def count_rows(db: Database) -> tuple[int, int]:
    waits = await db.fetch_value("SELECT COUNT(*) AS n FROM operation_waits")
    return waits, await db.fetch_value("SELECT COUNT(*) AS n FROM operation_events")


def test_event_ends_wait_immediately(database_url: str) -> None:
    async def scenario() -> None:
        script = ScriptedServices()
        async with opened(database_url) as db, running_worker(db, script, sweep=300) as worker:
            operation_id = await begin_operation(db, WaitingOperation, server_id="s")
            row = await wait_until(db, operation_id, is_waiting)
            assert (row["lease_owner"], row["lease_until"], row["step"]) == (None, 0, "hear")
            await wait_until_idle(worker)
            assert await post(db, "answer:s", {"status": "completed"})
            row = await wait_until_finished(db, operation_id)
            assert orjson.loads(row["results"]) == {"hear": {"status": "completed"}}
            assert (row["state"], script.log, await count_rows(db)) == ("done", ["ask", "use"], (0, 0))

    run(scenario())


def test_event_posted_before_wait_is_found(database_url: str) -> None:
    async def scenario() -> None:
        async def ask(op: Operation) -> None:
            assert not await post(op.db, f"answer:{op.server_id}", 7)

        async with opened(database_url) as db, running_worker(db, ScriptedServices(ask=ask)):
            row = await wait_until_finished(db, await begin_operation(db, WaitingOperation, server_id="s"))
            assert (row["state"], orjson.loads(row["results"])) == ("done", {"hear": 7})
            assert await count_rows(db) == (0, 0)

    run(scenario())


def test_concurrent_wait_and_event_are_not_lost(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as db, running_worker(db, ScriptedServices(), sweep=300):

            async def both(number: int) -> None:
                operation_id = await begin_operation(db, WaitingOperation, server_id=f"s{number}")
                await asyncio.sleep(0.0005 * number)
                await post(db, f"answer:s{number}", number)
                assert (await wait_until_finished(db, operation_id))["state"] == "done"

            await asyncio.gather(*(both(number) for number in range(40)))

    run(scenario())


def test_event_before_the_operation_is_ignored(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as db, running_worker(db, ScriptedServices()):
            await post(db, "answer:s", "stale")
            await asyncio.sleep(0.01)
            operation_id = await begin_operation(db, WaitingOperation, server_id="s")
            await wait_until(db, operation_id, is_waiting)
            await post(db, "answer:s", "fresh")
            assert orjson.loads((await wait_until_finished(db, operation_id))["results"]) == {"hear": "fresh"}

    run(scenario())


class ShortWait(RecordedFailure):
    kind = "test short wait"
    action = "short"
    steps = (
        Step("ask", scripted("ask"), scripted("undo_ask"), deadline=300),
        Wait(HEAR, key=lambda op: "short", deadline=0.3, poll=scripted("poll"), poll_every=0.1),
    )


class PolledWait(RecordedFailure):
    kind = "test polled wait"
    action = "polled"
    steps = (Wait(HEAR, key=lambda op: "short", deadline=300, poll=scripted("poll"), poll_every=0.1),)


def test_wait_fails_at_its_deadline(database_url: str) -> None:
    async def scenario() -> None:
        script = ScriptedServices()
        async with opened(database_url) as db, running_worker(db, script, sweep=300):
            row = await wait_until_finished(db, await begin_operation(db, ShortWait))
            assert (row["state"], orjson.loads(row["error"])["type"]) == ("failed", "TimedOut")
            # How many of its three polls are in time depends on the machine.
            assert script.count("poll") <= 4
            assert script.log[-2:] == ["undo_ask", "failed"]
            assert await count_rows(db) == (0, 0)

    run(scenario())


@pytest.mark.parametrize("fails_once", [False, True])
def test_poll_replaces_lost_event(database_url: str, fails_once: bool) -> None:
    async def poll(op: Operation) -> Any:
        if fails_once and script.count("poll") == 1:
            raise TransientError("service away")
        return {"seen": script.count("poll")} if script.count("poll") == 2 else None

    script = ScriptedServices(poll=poll)

    async def scenario() -> None:
        async with opened(database_url) as db, running_worker(db, script, sweep=300):
            row = await wait_until_finished(db, await begin_operation(db, PolledWait))
            assert (row["state"], orjson.loads(row["results"])) == ("done", {"hear": {"seen": 2}})
            assert await count_rows(db) == (0, 0)

    run(scenario())


def test_event_during_poll_is_not_lost(database_url: str) -> None:
    async def poll(op: Operation) -> None:
        await post(op.db, "short", "meanwhile")

    async def scenario() -> None:
        async with opened(database_url) as db, running_worker(db, ScriptedServices(poll=poll), sweep=300):
            row = await wait_until_finished(db, await begin_operation(db, PolledWait))
            assert orjson.loads(row["results"]) == {"hear": "meanwhile"}

    run(scenario())


class ConvertedPayload(RecordedFailure):
    kind = "test judged"
    action = "convert"

    @staticmethod
    def convert(op: Operation, payload: Any) -> Any:
        if payload == "bad":
            raise Failed("the other side said no")
        if payload == "elsewhere":
            raise GoBack("ask", reason="try there")
        return payload

    steps = lambda: (  # noqa: E731
        Step("ask", scripted("ask"), scripted("undo_ask"), deadline=300),
        Wait(HEAR, key=lambda op: "judged", deadline=300, convert_payload=ConvertedPayload.convert),
    )


@pytest.mark.parametrize("answers, state", [(["good"], "done"), (["bad"], "failed"), (["elsewhere", "good"], "done")])
def test_payload_conversion_can_fail_or_go_back(database_url: str, answers: list[str], state: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as db, running_worker(db, ScriptedServices()):
            operation_id = await begin_operation(db, ConvertedPayload)
            for number, answer in enumerate(answers, 1):
                await wait_until(
                    db, operation_id, lambda row, number=number: is_waiting(row) and row["round"] == number
                )
                await post(db, "judged", answer)
            assert (await wait_until_finished(db, operation_id))["state"] == state
            assert await count_rows(db) == (0, 0)

    run(scenario())


def test_wait_continues_without_worker(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as db:
            async with running_worker(db, ScriptedServices()):
                operation_id = await begin_operation(db, WaitingOperation, server_id="s")
                await wait_until(db, operation_id, is_waiting)
            await post(db, "answer:s", 1)
            assert (await get_row(db, operation_id))["state"] == "queued"
            async with running_worker(db, ScriptedServices()):
                assert (await wait_until_finished(db, operation_id))["state"] == "done"

    run(scenario())


def test_stale_events_are_deleted(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as db:
            await post(db, "new")
            async with db.transaction() as tx:
                await tx.execute(
                    "INSERT INTO operation_events (key, payload, created_at) VALUES ('old', '1', $1)",
                    clock.now() - events.STALE_AFTER_SECONDS - 1,
                )
            await store.clean_up(db, ["x"])
            assert [row["key"] for row in await db.fetch("SELECT key FROM operation_events")] == ["new"]

    run(scenario())


class HintedWait(RecordedFailure):
    kind = "test hinted wait"
    action = "hinted"
    steps = (Wait(HEAR, key=lambda op: "hint", deadline=300, poll=scripted("poll"), poll_first=True, is_hint=True),)


class ExpiringWait(RecordedFailure):
    kind = "test expiring wait"
    action = "expiring"
    steps = (Wait(HEAR, key=lambda op: "never", deadline=0.05, expire=scripted("expire")),)


def test_hint_lets_the_wait_poll(database_url: str) -> None:
    async def scenario() -> None:
        polled = asyncio.Queue[None]()
        is_true = False

        async def poll(op: Operation) -> str | None:
            polled.put_nowait(None)
            return "seen" if is_true else None

        async with opened(database_url) as db, running_worker(db, ScriptedServices(poll=poll), sweep=300):
            await post(db, "hint", "stale")
            operation_id = await begin_operation(db, HintedWait)
            await polled.get()
            await wait_until(db, operation_id, is_waiting)
            await post(db, "hint", "too early")
            await polled.get()
            await wait_until(db, operation_id, is_waiting)
            is_true = True
            await post(db, "hint", "now")
            assert orjson.loads((await wait_until_finished(db, operation_id))["results"]) == {"hear": "seen"}

    run(scenario())


def test_hint_during_a_poll_is_not_lost(database_url: str) -> None:
    async def scenario() -> None:
        polls = 0

        async def poll(op: Operation) -> str | None:
            nonlocal polls
            polls += 1
            if polls == 2:
                await post(db, "hint", "during the poll")
            return "seen" if polls == 3 else None

        async with opened(database_url) as db, running_worker(db, ScriptedServices(poll=poll), sweep=300):
            operation_id = await begin_operation(db, HintedWait)
            await wait_until(db, operation_id, is_waiting)
            await post(db, "hint")
            await wait_until_finished(db, operation_id)
            assert polls == 3

    run(scenario())


def test_event_that_is_only_a_hint_is_not_stored(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as db:
            async with db.transaction() as tx:
                assert not await post_event(tx, "hint", stored=False)
            assert await db.fetch("SELECT key FROM operation_events") == []

    run(scenario())


@pytest.mark.parametrize("result", ["good enough", None])
def test_wait_may_end_well_at_its_deadline(database_url: str, result: str | None) -> None:
    async def scenario() -> None:
        async def expire(op: Operation) -> str | None:
            return result

        async with opened(database_url) as db, running_worker(db, ScriptedServices(expire=expire), sweep=0.05):
            row = await wait_until_finished(db, await begin_operation(db, ExpiringWait))
            assert row["state"] == ("failed" if result is None else "done")
            assert result is None or orjson.loads(row["results"]) == {"hear": result}

    run(scenario())
