"""Cancelling operations: between and inside steps, during waits and delays, and too late."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from kilonova.operations import Cancelled, Failed, GoBack, Operation, Step, TransientError, execution, request_cancel
from kilonova.store import Database
from tests.operations.support import (
    RecordedFailure,
    ScriptedServices,
    ThreeSteps,
    WaitingOperation,
    begin_operation,
    get_row,
    recorded_steps,
    running_worker,
    scripted,
    wait_until,
    wait_until_finished,
)
from tests.support import run
from tests.support.databases import opened


class NotCancellable(RecordedFailure):
    kind = "test firm"
    action = "firm"
    steps = (
        Step("firm", scripted("firm"), scripted("undo_firm"), deadline=300, cancellable=False),
        Step("after", scripted("after"), scripted("undo_after"), deadline=300),
    )


async def cancel(db: Database, operation_id: str) -> bool:
    async with db.transaction() as tx:
        return await request_cancel(tx, operation_id)


def check_cancelled(script: ScriptedServices, row: dict[str, Any]) -> None:
    assert row["state"] == "cancelled"
    assert [type(error) for error in script.failed] == [Cancelled]


def test_cancel_interrupts_running_step(database_url: str) -> None:
    async def scenario() -> None:
        async def two(op: Operation) -> None:
            try:
                await asyncio.sleep(600)
            finally:
                script.log.append("cleaned")

        script = ScriptedServices(two=two)
        async with opened(database_url) as db, running_worker(db, script, sweep=300):
            operation_id = await begin_operation(db, ThreeSteps)
            await wait_until(db, operation_id, lambda row: "two" in script.log)
            assert await cancel(db, operation_id)
            check_cancelled(script, await wait_until_finished(db, operation_id))
            assert script.log == ["one", "two", "cleaned", "undo_two", "undo_one", "failed"]
            assert ("two", "forward", "cancelled") in await recorded_steps(db, operation_id)
            assert not await cancel(db, operation_id)

    run(scenario())


def test_lease_renewal_finds_cancel_without_notification(database_url: str, frequently_renewed_lease: float) -> None:
    async def scenario() -> None:
        script = ScriptedServices(two=lambda op: asyncio.sleep(600))
        async with opened(database_url) as db, running_worker(db, script, sweep=300, lease=frequently_renewed_lease):
            operation_id = await begin_operation(db, ThreeSteps)
            await wait_until(db, operation_id, lambda row: "two" in script.log)
            async with db.transaction() as tx:
                await tx.execute("UPDATE operations SET cancel_requested = TRUE")
            check_cancelled(script, await wait_until_finished(db, operation_id))

    run(scenario())


def test_not_cancellable_step_runs_to_its_end(database_url: str) -> None:
    async def scenario() -> None:
        async def firm(op: Operation) -> None:
            await cancel(op.db, op.id)
            await wait_until(op.db, op.id, lambda row: op.cancelled)
            await asyncio.sleep(0.05)
            script.log.append("finished")

        script = ScriptedServices(firm=firm)
        async with opened(database_url) as db, running_worker(db, script):
            check_cancelled(script, await wait_until_finished(db, await begin_operation(db, NotCancellable)))
            assert script.log[:2] == ["firm", "finished"]
            assert "after" not in script.log

    run(scenario())


def test_cancel_between_steps(database_url: str) -> None:
    async def scenario() -> None:
        async def one(op: Operation, tx: Any) -> None:
            await request_cancel(tx, op.id)

        script = ScriptedServices(one=one)
        async with opened(database_url) as db, running_worker(db, script):
            check_cancelled(script, await wait_until_finished(db, await begin_operation(db, ThreeSteps)))
            assert "two" not in script.log
            assert "undo_one" in script.log

    run(scenario())


def test_cancel_ends_wait_immediately(database_url: str) -> None:
    async def scenario() -> None:
        script = ScriptedServices()
        async with opened(database_url) as db, running_worker(db, script, sweep=300):
            operation_id = await begin_operation(db, WaitingOperation, server_id="s")
            await wait_until(db, operation_id, lambda row: row["state"] == "waiting")
            await cancel(db, operation_id)
            check_cancelled(script, await wait_until_finished(db, operation_id))
            assert script.log == ["ask", "undo_ask", "failed"]
            assert await db.fetch_value("SELECT COUNT(*) AS n FROM operation_waits") == 0

    run(scenario())


@pytest.mark.parametrize("in_memory", [False, True])
def test_cancel_ends_retry_delay_immediately(
    database_url: str, monkeypatch: pytest.MonkeyPatch, in_memory: bool
) -> None:
    if in_memory:
        monkeypatch.setattr(execution, "MAX_SLEEP_SECONDS", 1000.0)

    async def scenario() -> None:
        async def two(op: Operation) -> None:
            raise TransientError("away")

        script = ScriptedServices(two=two)
        async with opened(database_url) as db, running_worker(db, script, sweep=300, backoff=lambda attempt: 250.0):
            operation_id = await begin_operation(db, ThreeSteps)
            row = await wait_until(db, operation_id, lambda row: row["attempt"] == 1)
            assert row["state"] == ("running" if in_memory else "queued")
            await cancel(db, operation_id)
            check_cancelled(script, await wait_until_finished(db, operation_id))

    run(scenario())


def test_cancel_before_first_step(database_url: str) -> None:
    async def scenario() -> None:
        script = ScriptedServices()
        async with opened(database_url) as db:
            operation_id = await begin_operation(db, ThreeSteps)
            await cancel(db, operation_id)
            async with running_worker(db, script):
                check_cancelled(script, await wait_until_finished(db, operation_id))
            assert not {"one", "two", "three"} & set(script.log)

    run(scenario())


@pytest.mark.parametrize("error", [Failed("aborted"), GoBack("one", reason="elsewhere")])
def test_failure_after_cancel_counts_as_cancelled(database_url: str, error: Exception) -> None:
    async def scenario() -> None:
        async def firm(op: Operation) -> None:
            await cancel(op.db, op.id)
            await wait_until(op.db, op.id, lambda row: op.cancelled)
            raise error

        script = ScriptedServices(firm=firm)
        async with opened(database_url) as db, running_worker(db, script):
            operation_id = await begin_operation(db, NotCancellable)
            check_cancelled(script, await wait_until_finished(db, operation_id))
            assert script.count("firm") == 1

    run(scenario())


def test_cancel_has_no_effect_while_undoing_failure(database_url: str) -> None:
    async def scenario() -> None:
        async def two(op: Operation) -> None:
            raise Failed("no")

        async def undo_two(op: Operation) -> None:
            await cancel(op.db, op.id)
            await asyncio.sleep(0.05)

        script = ScriptedServices(two=two, undo_two=undo_two)
        async with opened(database_url) as db, running_worker(db, script):
            row = await wait_until_finished(db, await begin_operation(db, ThreeSteps))
            assert (row["state"], orjson.loads(row["error"])["message"]) == ("failed", "no")
            assert script.count("undo_two") == 1

    run(scenario())


def test_cancel_while_going_back(database_url: str) -> None:
    async def scenario() -> None:
        async def two(op: Operation) -> None:
            raise GoBack("two", reason="again")

        async def undo_two(op: Operation) -> None:
            if script.count("undo_two") == 1:
                await cancel(op.db, op.id)
                await asyncio.sleep(0.05)

        script = ScriptedServices(two=two, undo_two=undo_two)
        async with opened(database_url) as db, running_worker(db, script):
            check_cancelled(script, await wait_until_finished(db, await begin_operation(db, ThreeSteps)))
            assert script.count("two") == 1

    run(scenario())


def test_cancel_has_no_effect_after_last_step(database_url: str) -> None:
    async def scenario() -> None:
        async def three(op: Operation) -> None:
            await cancel(op.db, op.id)

        class Ended(Operation, register=False):
            kind = "test ended"
            action = "end"
            steps = (Step("three", scripted("three"), scripted("undo"), deadline=300, cancellable=False),)

        async with opened(database_url) as db, running_worker(db, ScriptedServices(three=three), kinds=[Ended]):
            operation_id = await begin_operation(db, Ended)
            assert (await wait_until_finished(db, operation_id))["state"] == "done"
            assert not await cancel(db, operation_id)
            assert (await get_row(db, operation_id))["cancel_requested"]

    run(scenario())
