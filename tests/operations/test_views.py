"""What others see: task states, instance actions, what stands still, and the command line."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from click.testing import CliRunner

from kilonova import clock
from kilonova.cli.operations import operations as command
from kilonova.operations import Failed, Operation, request_cancel, views
from kilonova.store import Database
from tests.operations.support import Script, Three, Waiting, finished, start, until, working
from tests.support import run
from tests.support.databases import opened


async def change(db: Database, sql: str, *args: Any) -> None:
    async with db.transaction() as tx:
        await tx.execute(sql, *args)


def test_the_task_state_is_that_of_the_running_step(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as db:
            boot = await start(db, Three, server_id="a", request_id="req-a")
            await start(db, Waiting, server_id="b")
            ended = await start(db, Three, server_id="c")
            await change(db, "UPDATE operations SET finished_at = 1 WHERE id = $1", ended)
            found = await views.running_of(db, ["a", "b", "c", "d"])
            assert set(found) == {"a", "b"}
            assert (found["a"].task_state, found["a"].progress, found["a"].request_id) == ("claiming", 0, "req-a")
            assert (found["b"].task_state, found["b"].action) == (None, "attach")
            await change(db, "UPDATE operations SET step = 'three' WHERE id = $1", boot)
            found = await views.running_of(db, ["a"])
            assert (found["a"].task_state, found["a"].progress) == ("building", 66)
            await change(db, "UPDATE operations SET progress = 91 WHERE id = $1", boot)
            assert (await views.running_of(db, ["a"]))["a"].progress == 91

    run(scenario())


def test_the_task_state_is_that_of_the_operation_that_ends_a_cancelled_one(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as db:
            first = await start(db, Three, server_id="a")
            second = await start(db, Waiting, server_id="a")
            assert (await views.running_of(db, ["a"]))["a"].id == first
            async with db.transaction() as tx:
                await request_cancel(tx, first)
            assert (await views.running_of(db, ["a"]))["a"].id == second

    run(scenario())


def test_an_operation_of_another_release_has_no_task_state(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as db:
            await start(db, Three, server_id="a")
            await change(db, "UPDATE operations SET kind = 'from the future', step = 'warp'")
            found = (await views.running_of(db, ["a"]))["a"]
            assert (found.task_state, found.progress) == (None, 0)

    run(scenario())


def test_an_action_and_its_events(database_url: str) -> None:
    async def two(op: Operation) -> None:
        op.host = "h1"
        raise ZeroDivisionError

    async def scenario() -> None:
        async with opened(database_url) as db, working(db, Script(two=two)):
            identity = await start(db, Three, server_id="s", request_id="req-1", user_id="u", project_id="p", host="h0")
            await finished(db, identity)
            action = await views.action_of(db, "s", "req-1")
            assert action is not None
            assert (action.operation_id, action.action, action.user_id, action.project_id) == (
                identity,
                "create",
                "u",
                "p",
            )
            assert action.message == "Error"
            assert action.finish_time is not None
            assert action.start_time <= action.updated_at
            events = [(event.event, event.result) for event in action.events]
            assert events == [("one", "Success"), ("two", "Error"), ("undo two", "Success"), ("undo one", "Success")]
            failure = action.events[1]
            assert (failure.details, failure.host) == ("Unexpected ZeroDivisionError in step 'two'", "h0")
            assert "ZeroDivisionError" in (failure.traceback or "")
            assert await views.action_of(db, "s", "req-2") is None
            assert await views.action_of(db, "other", "req-1") is None

    run(scenario())


def test_the_step_under_way_has_no_result(database_url: str) -> None:
    async def scenario() -> None:
        script = Script(two=lambda op: asyncio.sleep(600))
        async with opened(database_url) as db, working(db, script):
            identity = await start(db, Three, server_id="s", request_id="req-1")
            await until(db, identity, lambda row: "two" in script.log)
            action = await views.action_of(db, "s", "req-1")
            assert action is not None
            assert [(event.event, event.result) for event in action.events] == [("one", "Success"), ("two", None)]
            assert (action.message, action.finish_time, action.events[1].finish_time) == (None, None, None)
            async with db.transaction() as tx:
                await request_cancel(tx, identity)
            await finished(db, identity)

    run(scenario())


def test_actions_are_listed_newest_first_in_pages(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as db:
            for number in range(5):
                identity = await start(db, Three, server_id="s", request_id=f"req-{number}")
                await change(db, "UPDATE operations SET updated_at = $2 WHERE id = $1", identity, float(number))

            async def listed(**options: Any) -> list[str | None]:
                return [action.request_id for action in await views.actions_of(db, "s", **options)]

            assert await listed() == ["req-4", "req-3", "req-2", "req-1", "req-0"]
            assert await listed(limit=2) == ["req-4", "req-3"]
            assert await listed(limit=2, marker="req-3") == ["req-2", "req-1"]
            assert await listed(changes_since=1.0, changes_before=2.0) == ["req-2", "req-1"]
            assert await views.actions_of(db, "other") == []
            with pytest.raises(views.UnknownMarker):
                await listed(marker="req-9")

    run(scenario())


def test_stuck_are_those_that_fail_again_and_again_or_that_nobody_takes(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as db:
            old = clock.now() - 100
            await start(db, Three)
            overdue = await start(db, Three, server_id="s")
            behind = await start(db, Three, server_id="s")
            failing = await start(db, Three)
            trying = await start(db, Three)
            await change(db, "UPDATE operations SET run_at = $1 WHERE id = ANY($2)", old, [overdue, behind])
            trouble = 'UPDATE operations SET trouble = \'{"message": "away"}\', attempt = $2 WHERE id = $1'
            await change(db, trouble, failing, 9)
            await change(db, trouble, trying, 2)
            found = {summary.id: summary.reason for summary in await views.stuck(db)}
            assert found == {overdue: "No worker has taken it", failing: "away"}
            age = await views.queue_age(db)
            assert 95 < age <= clock.now() - old
            assert await views.counts(db) == {("test three", "queued"): 5}

    run(scenario())


def test_an_empty_queue_has_no_age(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as db:
            assert (await views.queue_age(db), await views.counts(db)) == (0.0, {})

    run(scenario())


async def prepare(url: str) -> tuple[str, str]:
    async def two(op: Operation) -> None:
        raise Failed("no [red]room")

    async with opened(url) as db:
        async with working(db, Script(two=two)):
            ended = await start(db, Three, server_id="s1")
            await finished(db, ended)
        return ended, await start(db, Waiting, server_id="s2")


def test_the_command_lists_cancels_and_retries(database_url: str) -> None:
    ended, waiting = run(prepare(database_url))

    def call(*args: str, code: int = 0) -> str:
        result = CliRunner().invoke(command, [*args, "--database", database_url])
        assert result.exit_code == code, result.output
        return result.output

    assert waiting in call()
    assert ended not in call()
    shown = call("--server", "s1")
    assert ended in shown
    assert "no [red]room" in shown
    assert waiting not in call("--stuck")
    call("--cancel", waiting)
    assert "nothing to do" in call("--cancel", waiting, code=1)
    assert "no such operation" in call("--retry", "x", code=1)

    async def pause(url: str) -> None:
        async with opened(url) as db:
            await change(db, "UPDATE operations SET run_at = run_at + 1000 WHERE id = $1", waiting)

    run(pause(database_url))
    call("--retry", waiting)


def test_the_command_says_where_it_found_nothing(tmp_path: Any) -> None:
    result = CliRunner().invoke(command, ["--data", str(tmp_path)])
    assert result.exit_code == 1
    assert "no database" in result.output
