"""Steps in their order: results, retries, deadlines, restarts, observers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from kilonova import clock
from kilonova.hosts.transport import HostUnreachable
from kilonova.operations import Failed, Operation, Passing, Step, running, store
from kilonova.operations.context import operation_id
from kilonova.operations.requests import try_again
from kilonova.operations.views import summaries
from kilonova.store import Database
from tests.operations.support import Script, Three, act, finished, idle, row_of, start, steps_of, until, working
from tests.support import run
from tests.support.databases import opened


class Quick(Operation):
    kind = "test quick"
    action = "quick"
    steps = (Step("only", act("only"), act("undo"), deadline=0.3),)


class Patient(Operation):
    kind = "test patient"
    action = "patient"
    steps = (Step("only", act("only"), act("undo"), deadline=100),)


def test_steps_run_in_order_and_see_earlier_results(database_url: str) -> None:
    seen: dict[str, Any] = {}

    async def one(op: Operation, tx: Any) -> Any:
        op.note["tried"] = ["h1"]
        op.host = "h1"
        return {"host": "h1"}

    async def two(op: Operation) -> Any:
        seen["two"] = (op.params, op.results, op.note, op.epoch, op.round, operation_id.get())
        return [1, 2]

    async def scenario() -> None:
        script = Script(one=one, two=two)
        async with opened(database_url) as db, working(db, script):
            identity = await start(db, Three, params={"size": 3}, server_id="s", request_id="req-1", project_id="p")
            row = await finished(db, identity)
            assert row["state"] == "done"
            assert script.log == ["one", "two", "three"]
            assert orjson.loads(row["results"]) == {"one": {"host": "h1"}, "two": [1, 2]}
            assert (row["host"], row["lease_owner"], row["error"], row["epoch"]) == ("h1", None, None, 1)
            assert seen["two"] == ({"size": 3}, {"one": {"host": "h1"}}, {"tried": ["h1"]}, 1, 1, identity)
            assert await steps_of(db, identity) == [(n, "forward", "done") for n in ("one", "two", "three")]

    run(scenario())


def test_begin_wakes_the_worker_at_once(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as db, working(db, Script(), sweep=300):
            await asyncio.sleep(0.1)
            await finished(db, await start(db, Three))

    run(scenario())


def test_a_rolled_back_begin_leaves_no_operation(database_url: str) -> None:
    async def scenario() -> None:
        from kilonova.operations import begin

        async with opened(database_url) as db:
            with pytest.raises(ZeroDivisionError):
                async with db.transaction() as tx:
                    await begin(tx, Three)
                    raise ZeroDivisionError
            assert await db.fetch_value("SELECT COUNT(*) AS n FROM operations") == 0

    run(scenario())


@pytest.mark.parametrize("step", ["one", "two"])
def test_passing_errors_are_tried_again(database_url: str, step: str) -> None:
    async def scenario() -> None:
        async def troubled(op: Operation, *tx: Any) -> Any:
            op.note["half"] = True
            if script.count(step) < 4:
                raise Passing("not yet")
            return dict(op.note)

        script = Script(**{step: troubled})
        async with opened(database_url) as db, working(db, script):
            row = await finished(db, await start(db, Three))
            assert (row["state"], script.count(step), row["attempt"], row["trouble"]) == ("done", 4, 0, None)

    run(scenario())


def test_what_a_failed_attempt_left_in_memory_is_dropped(database_url: str) -> None:
    async def scenario() -> None:
        async def two(op: Operation) -> Any:
            before = dict(op.note)
            op.note["mine"] = True
            if script.count("two") < 2:
                raise Passing("not yet")
            return before

        script = Script(two=two)
        async with opened(database_url) as db, working(db, script):
            row = await finished(db, await start(db, Three, note={"given": 1}))
            assert orjson.loads(row["results"])["two"] == {"given": 1}
            assert orjson.loads(row["note"]) == {"given": 1, "mine": True}

    run(scenario())


def test_a_long_pause_holds_no_lease(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "IN_MEMORY", 0.1)

    async def scenario() -> None:
        async def two(op: Operation) -> None:
            if script.count("two") == 1:
                raise Passing("host is away")

        script = Script(two=two)
        async with opened(database_url) as db, working(db, script, backoff=lambda attempt: 250.0):
            identity = await start(db, Three)
            row = await until(db, identity, lambda row: row["state"] == "queued" and row["attempt"] == 1)
            assert (row["lease_owner"], row["lease_until"]) == (None, 0)
            assert orjson.loads(row["trouble"])["message"] == "host is away"
            async with db.transaction() as tx:
                assert await try_again(tx, identity)
            row = await finished(db, identity)
            assert (row["state"], row["epoch"]) == ("done", 2)

    run(scenario())


def test_a_passing_error_is_not_tried_beyond_the_deadline(database_url: str, let_pass: Callable[[float], None]) -> None:
    async def scenario() -> None:
        async def only(op: Operation) -> None:
            let_pass(40)
            raise Passing("host is away")

        script = Script(only=only)
        async with opened(database_url) as db, working(db, script, lease=1000):
            row = await finished(db, await start(db, Patient))
            assert row["state"] == "failed"
            assert orjson.loads(row["error"])["message"] == "'only' did not end within 100 s: host is away"
            assert script.count("only") == 3

    run(scenario())


def test_a_step_is_cut_off_at_its_deadline(database_url: str) -> None:
    async def scenario() -> None:
        async def only(op: Operation) -> None:
            try:
                await asyncio.sleep(600)
            except asyncio.CancelledError:
                raise RuntimeError("some client's own error") from None

        script = Script(only=only)
        async with opened(database_url) as db, working(db, script):
            row = await finished(db, await start(db, Quick))
            assert (row["state"], orjson.loads(row["error"])["type"]) == ("failed", "TimedOut")
            assert script.log[-1] == "undo"

    run(scenario())


def test_a_steps_own_timeout_is_not_its_deadline(database_url: str) -> None:
    async def scenario() -> None:
        async def only(op: Operation) -> None:
            raise TimeoutError("a socket's")

        async with opened(database_url) as db, working(db, Script(only=only)):
            row = await finished(db, await start(db, Patient))
            assert orjson.loads(row["error"])["message"] == "Unexpected TimeoutError in step 'only'"

    run(scenario())


async def _left(db: Database, ago: float, **columns: float | str | None) -> str:
    """An operation whose step began long ago, as its worker left it."""
    identity = await start(db, Patient)
    now = clock.now()
    known = {"epoch": 1, "step_started_at": now - ago, "run_at": now - ago, **columns}
    changes = ", ".join(f"{column} = ${number}" for number, column in enumerate(known, 1))
    async with db.transaction() as tx:
        await tx.execute(f"UPDATE operations SET {changes}", *known.values())
    return identity


def test_the_deadline_counts_from_the_first_start_whatever_dies(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as db:
            identity = await _left(db, 900, run_at=clock.now())
            script = Script()
            async with working(db, script):
                assert (await finished(db, identity))["state"] == "failed"
            assert script.log == ["undo"]

    run(scenario())


LEAVINGS: dict[str, dict[str, Any]] = {
    "given back": {"state": "queued"},
    "by a dead worker": {"state": "running", "lease_owner": "dead", "lease_until": -900.0},
    "in a pause": {"state": "queued", "attempt": 1, "run_at": -890.0},
}


@pytest.mark.parametrize("alone", [False, True], ids=["of many", "alone"])
@pytest.mark.parametrize("left", LEAVINGS)
def test_the_deadline_does_not_count_the_time_without_workers(database_url: str, left: str, alone: bool) -> None:
    async def scenario() -> None:
        async with opened(database_url) as db:
            now = clock.now()
            moments = {"run_at", "lease_until"}
            columns = {name: now + value if name in moments else value for name, value in LEAVINGS[left].items()}
            identity = await _left(db, 900, **columns)
            if alone:
                await store.free_all(db, 0.0)
            script = Script()
            async with working(db, script, lease=300):
                row = await finished(db, identity)
            assert (row["state"], script.log) == ("done", ["only"])

    run(scenario())


def test_a_death_costs_the_step_no_more_than_the_pause_between_renewals(database_url: str) -> None:
    """The one who takes over cannot know better when the other died."""

    async def scenario() -> None:
        async with opened(database_url) as db:
            for alone in (False, True):
                now = clock.now()
                lease = {"state": "running", "lease_owner": "dead", "lease_until": now}
                identity = await _left(db, 30, **lease)
                if alone:
                    assert await store.free_all(db, 30) == 1
                before = clock.now()
                (row,) = await store.lease(db, "next", 30, [Patient.kind], 10)
                assert row["id"] == identity
                assert 20 + before - now <= row["step_idle"] + 0.001 <= 20.002 + clock.now() - now
                async with db.transaction() as tx:
                    await tx.execute("DELETE FROM operations")

    run(scenario())


def test_each_step_keeps_its_own_account(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as db:
            identity = await start(db, Three)
            async with db.transaction() as tx:
                await tx.execute("UPDATE operations SET step_started_at = created_at - 900, run_at = created_at - 900")
            seen: list[float] = []

            async def two(op: Operation) -> None:
                seen.append(await op.db.fetch_value("SELECT step_idle FROM operations"))

            async with working(db, Script(two=two)):
                assert (await finished(db, identity))["state"] == "done"
            assert seen == [0]

    run(scenario())


def test_an_unexpected_error_shows_users_no_internals(database_url: str) -> None:
    async def scenario() -> None:
        async def two(op: Operation) -> None:
            raise KeyError("password=secret")

        script = Script(two=two)
        async with opened(database_url) as db, working(db, script):
            error = orjson.loads((await finished(db, await start(db, Three)))["error"])
            assert error["message"] == "Unexpected KeyError in step 'two'"
            assert "KeyError" in error["internal"]
            assert str(script.failed[0]) == error["message"]
            assert script.failed[0].internal == error["internal"]  # type: ignore[attr-defined]

    run(scenario())


def test_a_failure_carries_its_fault_to_the_hook(database_url: str) -> None:
    async def scenario() -> None:
        class NoRoom(Failed):
            pass

        async def one(op: Operation, tx: Any) -> None:
            raise NoRoom("no valid host", fault={"code": 500})

        script = Script(one=one)
        async with opened(database_url) as db, working(db, script):
            await finished(db, await start(db, Three))
            assert [(str(e), e.fault, type(e)) for e in script.failed] == [("no valid host", {"code": 500}, Failed)]  # type: ignore[attr-defined]

    run(scenario())


def test_progress_is_reported_inside_a_step(database_url: str) -> None:
    async def scenario() -> None:
        async def two(op: Operation) -> None:
            await op.report(70)
            assert (await row_of(op.db, op.id))["progress"] == 70

        async with opened(database_url) as db, working(db, Script(two=two)):
            assert (await finished(db, await start(db, Three)))["state"] == "done"

    run(scenario())


class Counts:
    def __init__(self) -> None:
        self.seen: list[tuple[str, ...]] = []

    def step_finished(self, kind: str, step: str, phase: str, outcome: str, seconds: float) -> None:
        assert 0 <= seconds < 100
        self.seen.append((kind, step, phase, outcome))

    def operation_finished(self, kind: str, state: str) -> None:
        self.seen.append((kind, state))


def test_the_observer_is_told_of_every_end(database_url: str) -> None:
    async def scenario() -> None:
        async def two(op: Operation) -> None:
            raise Failed("no")

        counts = Counts()
        async with opened(database_url) as db:
            async with working(db, Script(two=two), observer=counts) as worker:
                await finished(db, await start(db, Three))
                await idle(worker)
            assert counts.seen == [
                ("test three", "one", "forward", "done"),
                ("test three", "two", "forward", "failed"),
                ("test three", "two", "undo", "done"),
                ("test three", "one", "undo", "done"),
                ("test three", "failed"),
            ]

    run(scenario())


def test_of_trouble_with_a_host_users_read_what_is_meant_for_them(
    database_url: str, let_pass: Callable[[float], None]
) -> None:
    async def scenario() -> None:
        async def only(op: Operation) -> None:
            let_pass(200)
            raise HostUnreachable("sim-001", "10.0.0.1 refuses the connection")

        async with opened(database_url) as db, working(db, Script(only=only), lease=1000):
            row = await finished(db, await start(db, Patient, server_id="s1"))
            error = orjson.loads(row["error"])
            assert error["message"] == "'only' did not end within 100 s: no answer from the host"
            assert error["fault"] == "sim-001: 10.0.0.1 refuses the connection"
            (shown,) = await summaries(db, "s1")
            assert shown.reason == error["fault"], "operators read the whole of it"

    run(scenario())
