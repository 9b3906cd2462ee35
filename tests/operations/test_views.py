"""Queries on operations: task states, instance actions, stuck operations; and `kilonova operations`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from click.testing import CliRunner

from kilonova import clock
from kilonova.cli.operations import operations as command
from kilonova.operations import Failed, Operation, request_cancel, views
from kilonova.store import Database
from tests.operations.support import (
    ScriptedServices,
    ThreeSteps,
    WaitingOperation,
    begin_operation,
    running_worker,
    wait_until,
    wait_until_finished,
)
from tests.support import run
from tests.support.databases import opened


async def change(db: Database, sql: str, *args: Any) -> None:
    async with db.transaction() as tx:
        await tx.execute(sql, *args)


def test_task_state_is_that_of_the_running_step(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as db:
            boot = await begin_operation(db, ThreeSteps, server_id="a", request_id="req-a")
            await begin_operation(db, WaitingOperation, server_id="b")
            ended = await begin_operation(db, ThreeSteps, server_id="c")
            await change(db, "UPDATE operations SET finished_at = 1 WHERE id = $1", ended)
            found = await views.find_running(db, ["a", "b", "c", "d"])
            assert set(found) == {"a", "b"}
            assert (found["a"].task_state, found["a"].progress, found["a"].request_id) == ("claiming", 0, "req-a")
            assert (found["b"].task_state, found["b"].action) == (None, "attach")
            await change(db, "UPDATE operations SET step = 'three' WHERE id = $1", boot)
            found = await views.find_running(db, ["a"])
            assert (found["a"].task_state, found["a"].progress) == ("building", 66)
            await change(db, "UPDATE operations SET progress = 91 WHERE id = $1", boot)
            assert (await views.find_running(db, ["a"]))["a"].progress == 91

    run(scenario())


def test_task_state_skips_cancelled_operation(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as db:
            first = await begin_operation(db, ThreeSteps, server_id="a")
            second = await begin_operation(db, WaitingOperation, server_id="a")
            assert (await views.find_running(db, ["a"]))["a"].id == first
            async with db.transaction() as tx:
                await request_cancel(tx, first)
            assert (await views.find_running(db, ["a"]))["a"].id == second

    run(scenario())


def test_operation_of_another_release_has_no_task_state(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as db:
            await begin_operation(db, ThreeSteps, server_id="a")
            await change(db, "UPDATE operations SET kind = 'from the future', step = 'warp'")
            found = (await views.find_running(db, ["a"]))["a"]
            assert (found.task_state, found.progress) == (None, 0)

    run(scenario())


def test_action_has_events_of_its_steps(database_url: str) -> None:
    async def two(op: Operation) -> None:
        op.host = "h1"
        raise ZeroDivisionError

    async def scenario() -> None:
        async with opened(database_url) as db, running_worker(db, ScriptedServices(two=two)):
            operation_id = await begin_operation(
                db, ThreeSteps, server_id="s", request_id="req-1", user_id="u", project_id="p", host="h0"
            )
            await wait_until_finished(db, operation_id)
            action = await views.find_action(db, "s", "req-1")
            assert action is not None
            assert (action.operation_id, action.action, action.user_id, action.project_id) == (
                operation_id,
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
            assert await views.find_action(db, "s", "req-2") is None
            assert await views.find_action(db, "other", "req-1") is None

    run(scenario())


def test_event_of_current_step_has_no_result(database_url: str) -> None:
    async def scenario() -> None:
        script = ScriptedServices(two=lambda op: asyncio.sleep(600))
        async with opened(database_url) as db, running_worker(db, script):
            operation_id = await begin_operation(db, ThreeSteps, server_id="s", request_id="req-1")
            await wait_until(db, operation_id, lambda row: "two" in script.log)
            action = await views.find_action(db, "s", "req-1")
            assert action is not None
            assert [(event.event, event.result) for event in action.events] == [("one", "Success"), ("two", None)]
            assert (action.message, action.finish_time, action.events[1].finish_time) == (None, None, None)
            async with db.transaction() as tx:
                await request_cancel(tx, operation_id)
            await wait_until_finished(db, operation_id)

    run(scenario())


def test_actions_are_listed_newest_first_in_pages(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as db:
            for number in range(5):
                operation_id = await begin_operation(db, ThreeSteps, server_id="s", request_id=f"req-{number}")
                await change(db, "UPDATE operations SET updated_at = $2 WHERE id = $1", operation_id, float(number))

            async def listed(**options: Any) -> list[str | None]:
                return [action.request_id for action in await views.list_actions(db, "s", **options)]

            assert await listed() == ["req-4", "req-3", "req-2", "req-1", "req-0"]
            assert await listed(limit=2) == ["req-4", "req-3"]
            assert await listed(limit=2, marker="req-3") == ["req-2", "req-1"]
            assert await listed(changes_since=1.0, changes_before=2.0) == ["req-2", "req-1"]
            assert await views.list_actions(db, "other") == []
            with pytest.raises(views.UnknownMarker):
                await listed(marker="req-9")

    run(scenario())


def test_stuck_operations_fail_repeatedly_or_have_no_worker(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as db:
            old = clock.now() - 100
            await begin_operation(db, ThreeSteps)
            overdue = await begin_operation(db, ThreeSteps, server_id="s")
            behind = await begin_operation(db, ThreeSteps, server_id="s")
            failing = await begin_operation(db, ThreeSteps)
            trying = await begin_operation(db, ThreeSteps)
            await change(db, "UPDATE operations SET run_at = $1 WHERE id = ANY($2)", old, [overdue, behind])
            trouble = 'UPDATE operations SET trouble = \'{"message": "away"}\', attempt = $2 WHERE id = $1'
            await change(db, trouble, failing, 9)
            await change(db, trouble, trying, 2)
            found = {summary.id: summary.reason for summary in await views.find_stuck(db)}
            assert found == {overdue: "No worker has leased the operation", failing: "away"}
            age = await views.oldest_wait_seconds(db)
            assert 95 < age <= clock.now() - old
            assert await views.count_unfinished(db) == {("test three", "queued"): 5}

    run(scenario())


def test_no_wait_without_operations(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as db:
            assert (await views.oldest_wait_seconds(db), await views.count_unfinished(db)) == (0.0, {})

    run(scenario())


async def prepare(url: str) -> tuple[str, str]:
    async def two(op: Operation) -> None:
        raise Failed("no [red]room")

    async with opened(url) as db:
        async with running_worker(db, ScriptedServices(two=two)):
            ended = await begin_operation(db, ThreeSteps, server_id="s1")
            await wait_until_finished(db, ended)
        return ended, await begin_operation(db, WaitingOperation, server_id="s2")


def test_command_lists_cancels_and_retries(database_url: str) -> None:
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
    assert "cannot be changed now" in call("--cancel", waiting, code=1)
    assert "no such operation" in call("--retry", "x", code=1)

    async def pause(url: str) -> None:
        async with opened(url) as db:
            await change(db, "UPDATE operations SET run_at = run_at + 1000 WHERE id = $1", waiting)

    run(pause(database_url))
    call("--retry", waiting)


def test_command_without_database_fails(tmp_path: Any) -> None:
    result = CliRunner().invoke(command, ["--data", str(tmp_path)])
    assert result.exit_code == 1
    assert "no database" in result.output
