"""Running steps: results, retries, deadlines, restarts, observers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from kilonova import clock
from kilonova.hosts.transport import HostUnreachable
from kilonova.operations import Failed, Operation, Step, TransientError, execution, store
from kilonova.operations.control import retry_now
from kilonova.operations.views import list_summaries
from kilonova.store import Database
from kilonova.telemetry.context import operation_id
from tests.operations.support import (
    ScriptedServices,
    ScriptParams,
    ThreeSteps,
    begin_operation,
    get_row,
    recorded_steps,
    running_worker,
    scripted,
    wait_until,
    wait_until_finished,
    wait_until_idle,
)
from tests.support import run
from tests.support.databases import opened


class ShortDeadline(Operation):
    kind = "test quick"
    action = "quick"
    steps = (Step("only", scripted("only"), scripted("undo"), deadline=0.3),)


class LongDeadline(Operation):
    kind = "test patient"
    action = "patient"
    steps = (Step("only", scripted("only"), scripted("undo"), deadline=100),)


def test_steps_run_in_order_and_see_earlier_results(database_url: str) -> None:
    seen: dict[str, Any] = {}

    async def one(op: Operation, tx: Any) -> Any:
        op.note["tried"] = ["h1"]
        op.host = "h1"
        return {"host": "h1"}

    async def two(op: Operation) -> Any:
        seen["two"] = (op.params, dict(op.results), op.note, op.epoch, op.round, operation_id.get())
        return [1, 2]

    async def scenario() -> None:
        script = ScriptedServices(one=one, two=two)
        async with opened(database_url) as db, running_worker(db, script):
            begun_id = await begin_operation(
                db, ThreeSteps, params=ScriptParams(size=3), server_id="s", request_id="req-1", project_id="p"
            )
            row = await wait_until_finished(db, begun_id)
            assert row["state"] == "done"
            assert script.log == ["one", "two", "three"]
            assert orjson.loads(row["results"]) == {"one": {"host": "h1"}, "two": [1, 2]}
            assert (row["host"], row["lease_owner"], row["error"], row["epoch"]) == ("h1", None, None, 1)
            assert seen["two"] == (ScriptParams(size=3), {"one": {"host": "h1"}}, {"tried": ["h1"]}, 1, 1, begun_id)
            assert await recorded_steps(db, begun_id) == [(n, "forward", "done") for n in ("one", "two", "three")]

    run(scenario())


def test_begin_notifies_worker(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as db, running_worker(db, ScriptedServices(), sweep=300):
            await asyncio.sleep(0.1)
            await wait_until_finished(db, await begin_operation(db, ThreeSteps))

    run(scenario())


def test_rolled_back_begin_leaves_no_operation(database_url: str) -> None:
    async def scenario() -> None:
        from kilonova.operations import begin

        async with opened(database_url) as db:
            with pytest.raises(ZeroDivisionError):
                async with db.transaction() as tx:
                    await begin(tx, ThreeSteps)
                    raise ZeroDivisionError
            assert await db.fetch_value("SELECT COUNT(*) AS n FROM operations") == 0

    run(scenario())


@pytest.mark.parametrize("step", ["one", "two"])
def test_transient_errors_are_retried(database_url: str, step: str) -> None:
    async def scenario() -> None:
        async def fails_three_times(op: Operation, *tx: Any) -> Any:
            op.note["half"] = True
            if script.count(step) < 4:
                raise TransientError("not yet")
            return dict(op.note)

        script = ScriptedServices(**{step: fails_three_times})
        async with opened(database_url) as db, running_worker(db, script):
            row = await wait_until_finished(db, await begin_operation(db, ThreeSteps))
            assert (row["state"], script.count(step), row["attempt"], row["trouble"]) == ("done", 4, 0, None)

    run(scenario())


def test_failed_attempt_changes_nothing_in_memory(database_url: str) -> None:
    async def scenario() -> None:
        async def two(op: Operation) -> Any:
            before = dict(op.note)
            op.note["mine"] = True
            if script.count("two") < 2:
                raise TransientError("not yet")
            return before

        script = ScriptedServices(two=two)
        async with opened(database_url) as db, running_worker(db, script):
            row = await wait_until_finished(db, await begin_operation(db, ThreeSteps, note={"given": 1}))
            assert orjson.loads(row["results"])["two"] == {"given": 1}
            assert orjson.loads(row["note"]) == {"given": 1, "mine": True}

    run(scenario())


def test_long_retry_delay_releases_lease(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "MAX_SLEEP_SECONDS", 0.1)

    async def scenario() -> None:
        async def two(op: Operation) -> None:
            if script.count("two") == 1:
                raise TransientError("host is away")

        script = ScriptedServices(two=two)
        async with opened(database_url) as db, running_worker(db, script, backoff=lambda attempt: 250.0):
            begun_id = await begin_operation(db, ThreeSteps)
            row = await wait_until(db, begun_id, lambda row: row["state"] == "queued" and row["attempt"] == 1)
            assert (row["lease_owner"], row["lease_until"]) == (None, 0)
            assert orjson.loads(row["trouble"])["message"] == "host is away"
            async with db.transaction() as tx:
                assert await retry_now(tx, begun_id)
            row = await wait_until_finished(db, begun_id)
            assert (row["state"], row["epoch"]) == ("done", 2)

    run(scenario())


def test_transient_error_is_not_retried_after_deadline(
    database_url: str, advance_clock: Callable[[float], None]
) -> None:
    async def scenario() -> None:
        async def only(op: Operation) -> None:
            advance_clock(40)
            raise TransientError("host is away")

        script = ScriptedServices(only=only)
        async with opened(database_url) as db, running_worker(db, script, lease=1000):
            row = await wait_until_finished(db, await begin_operation(db, LongDeadline))
            assert row["state"] == "failed"
            assert orjson.loads(row["error"])["message"] == "'only' did not end within 100 s: host is away"
            assert script.count("only") == 3

    run(scenario())


def test_step_is_interrupted_at_its_deadline(database_url: str) -> None:
    async def scenario() -> None:
        async def only(op: Operation) -> None:
            try:
                await asyncio.sleep(600)
            except asyncio.CancelledError:
                raise RuntimeError("some client's own error") from None

        script = ScriptedServices(only=only)
        async with opened(database_url) as db, running_worker(db, script):
            row = await wait_until_finished(db, await begin_operation(db, ShortDeadline))
            assert (row["state"], orjson.loads(row["error"])["type"]) == ("failed", "TimedOut")
            assert script.log[-1] == "undo"

    run(scenario())


def test_timeout_error_of_a_step_is_not_its_deadline(database_url: str) -> None:
    async def scenario() -> None:
        async def only(op: Operation) -> None:
            raise TimeoutError("a socket's")

        async with opened(database_url) as db, running_worker(db, ScriptedServices(only=only)):
            row = await wait_until_finished(db, await begin_operation(db, LongDeadline))
            assert orjson.loads(row["error"])["message"] == "Unexpected TimeoutError in step 'only'"

    run(scenario())


async def _abandoned(db: Database, ago: float, **columns: float | str | None) -> str:
    """An operation whose step started `ago` seconds before, and whose worker has ended."""
    begun_id = await begin_operation(db, LongDeadline)
    now = clock.now()
    known = {"epoch": 1, "step_started_at": now - ago, "run_at": now - ago, **columns}
    changes = ", ".join(f"{column} = ${number}" for number, column in enumerate(known, 1))
    async with db.transaction() as tx:
        await tx.execute(f"UPDATE operations SET {changes}", *known.values())
    return begun_id


def test_deadline_counts_from_first_start(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as db:
            begun_id = await _abandoned(db, 900, run_at=clock.now())
            script = ScriptedServices()
            async with running_worker(db, script):
                assert (await wait_until_finished(db, begun_id))["state"] == "failed"
            assert script.log == ["undo"]

    run(scenario())


ABANDONED: dict[str, dict[str, Any]] = {
    "given back": {"state": "queued"},
    "by a dead worker": {"state": "running", "lease_owner": "dead", "lease_until": -900.0},
    "in a pause": {"state": "queued", "attempt": 1, "run_at": -890.0},
}


@pytest.mark.parametrize("alone", [False, True], ids=["of many", "alone"])
@pytest.mark.parametrize("left", ABANDONED)
def test_deadline_excludes_time_without_worker(database_url: str, left: str, alone: bool) -> None:
    async def scenario() -> None:
        async with opened(database_url) as db:
            now = clock.now()
            moments = {"run_at", "lease_until"}
            columns = {name: now + value if name in moments else value for name, value in ABANDONED[left].items()}
            begun_id = await _abandoned(db, 900, **columns)
            if alone:
                await store.end_all_leases(db, 0.0)
            script = ScriptedServices()
            async with running_worker(db, script, lease=300):
                row = await wait_until_finished(db, begun_id)
            assert (row["state"], script.log) == ("done", ["only"])

    run(scenario())


def test_dead_worker_costs_at_most_one_renewal_interval(database_url: str) -> None:
    """The next worker knows only when the lease was last renewed."""

    async def scenario() -> None:
        async with opened(database_url) as db:
            for alone in (False, True):
                now = clock.now()
                lease = {"state": "running", "lease_owner": "dead", "lease_until": now}
                begun_id = await _abandoned(db, 30, **lease)
                if alone:
                    assert await store.end_all_leases(db, 30) == 1
                before = clock.now()
                ((row,), _) = await store.lease(db, "next", 30, [LongDeadline.kind], 10)
                assert row.id == begun_id
                assert 20 + before - now <= row.step_idle + 0.001 <= 20.002 + clock.now() - now
                async with db.transaction() as tx:
                    await tx.execute("DELETE FROM operations")

    run(scenario())


def test_idle_time_is_reset_for_each_step(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as db:
            begun_id = await begin_operation(db, ThreeSteps)
            async with db.transaction() as tx:
                await tx.execute("UPDATE operations SET step_started_at = created_at - 900, run_at = created_at - 900")
            seen: list[float] = []

            async def two(op: Operation) -> None:
                seen.append(await op.db.fetch_value("SELECT step_idle FROM operations"))

            async with running_worker(db, ScriptedServices(two=two)):
                assert (await wait_until_finished(db, begun_id))["state"] == "done"
            assert seen == [0]

    run(scenario())


def test_unexpected_error_hides_internals_from_users(database_url: str) -> None:
    async def scenario() -> None:
        async def two(op: Operation) -> None:
            raise KeyError("password=secret")

        script = ScriptedServices(two=two)
        async with opened(database_url) as db, running_worker(db, script):
            error = orjson.loads((await wait_until_finished(db, await begin_operation(db, ThreeSteps)))["error"])
            assert error["message"] == "Unexpected KeyError in step 'two'"
            assert "KeyError" in error["internal"]
            assert str(script.failed[0]) == error["message"]
            assert script.failed[0].internal == error["internal"]  # type: ignore[attr-defined]

    run(scenario())


def test_failed_hook_gets_fault(database_url: str) -> None:
    async def scenario() -> None:
        class NoRoom(Failed):
            pass

        async def one(op: Operation, tx: Any) -> None:
            raise NoRoom("no valid host", fault="sim-001 is full")

        script = ScriptedServices(one=one)
        async with opened(database_url) as db, running_worker(db, script):
            await wait_until_finished(db, await begin_operation(db, ThreeSteps))
            assert [(str(e), e.fault, type(e)) for e in script.failed] == [("no valid host", "sim-001 is full", Failed)]  # type: ignore[attr-defined]

    run(scenario())


def test_progress_is_reported_inside_a_step(database_url: str) -> None:
    async def scenario() -> None:
        async def two(op: Operation) -> None:
            await op.report(70)
            assert (await get_row(op.db, op.id))["progress"] == 70

        async with opened(database_url) as db, running_worker(db, ScriptedServices(two=two)):
            assert (await wait_until_finished(db, await begin_operation(db, ThreeSteps)))["state"] == "done"

    run(scenario())


class RecordingObserver:
    def __init__(self) -> None:
        self.seen: list[tuple[str, ...]] = []

    def step_finished(self, kind: str, step: str, phase: str, outcome: str, seconds: float) -> None:
        assert 0 <= seconds < 100
        self.seen.append((kind, step, phase, outcome))

    def operation_finished(self, kind: str, state: str) -> None:
        self.seen.append((kind, state))


def test_observer_sees_every_step_and_operation(database_url: str) -> None:
    async def scenario() -> None:
        async def two(op: Operation) -> None:
            raise Failed("no")

        observer = RecordingObserver()
        async with opened(database_url) as db:
            async with running_worker(db, ScriptedServices(two=two), observer=observer) as worker:
                await wait_until_finished(db, await begin_operation(db, ThreeSteps))
                await wait_until_idle(worker)
            assert observer.seen == [
                ("test three", "one", "forward", "done"),
                ("test three", "two", "forward", "failed"),
                ("test three", "two", "undo", "done"),
                ("test three", "one", "undo", "done"),
                ("test three", "failed"),
            ]

    run(scenario())


def test_users_see_public_message_of_unreachable_host(
    database_url: str, advance_clock: Callable[[float], None]
) -> None:
    async def scenario() -> None:
        async def only(op: Operation) -> None:
            advance_clock(200)
            raise HostUnreachable("sim-001", "10.0.0.1 refuses the connection")

        async with opened(database_url) as db, running_worker(db, ScriptedServices(only=only), lease=1000):
            row = await wait_until_finished(db, await begin_operation(db, LongDeadline, server_id="s1"))
            error = orjson.loads(row["error"])
            assert error["message"] == "'only' did not end within 100 s: no answer from the host"
            assert error["fault"] == "sim-001: 10.0.0.1 refuses the connection"
            (shown,) = await list_summaries(db, "s1")
            assert shown.reason == error["fault"], "operators see the host and the reason"

    run(scenario())


def test_result_of_a_step_that_declares_none_fails_the_step(database_url: str) -> None:
    async def three(op: Operation) -> int:
        return 3

    async def scenario() -> None:
        script = ScriptedServices(three=three)
        async with opened(database_url) as db, running_worker(db, script):
            row = await wait_until_finished(db, await begin_operation(db, ThreeSteps))
            assert row["state"] == "failed"
            assert "the step 'three' declares no result" in orjson.loads(row["error"])["internal"]

    run(scenario())
