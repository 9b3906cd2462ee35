"""Leases: one worker per operation, one operation per server at a time, and no writes after a lost lease."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest

from kilonova.operations import Failed, LostLease, Operation, Step, TransientError, begin, store, views
from kilonova.store import Database, Unavailable, incarnation
from tests.operations.support import (
    RecordedFailure,
    ScriptedServices,
    ScriptParams,
    ThreeSteps,
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


class SingleStep(Operation[ScriptParams]):
    kind = "test one"
    action = "one"
    steps = (Step("only", scripted("only"), scripted("undo"), deadline=300),)


async def take_over(db: Database, operation_id: str) -> None:
    """Lease the operation as another worker does after the lease has expired."""
    async with db.transaction() as tx:
        await tx.execute(
            "UPDATE operations SET lease_owner = 'other', lease_until = 1e12, epoch = epoch + 1 WHERE id = $1",
            operation_id,
        )


def test_two_workers_run_operations_of_a_server_in_order(database_url: str) -> None:
    running: defaultdict[str | None, int] = defaultdict(int)
    order: defaultdict[str | None, list[int]] = defaultdict(list)

    async def only(op: Operation) -> None:
        running[op.server_id] += 1
        assert running[op.server_id] == 1
        order[op.server_id].append(op.params.number)
        await asyncio.sleep(0.01)
        running[op.server_id] -= 1

    async def scenario() -> None:
        script = ScriptedServices(only=only)
        async with opened(database_url) as db, opened(database_url) as other:
            async with running_worker(db, script), running_worker(other, script):

                async def burst(server: str) -> list[str]:
                    return [
                        await begin_operation(db, SingleStep, server_id=server, params=ScriptParams(number=n))
                        for n in range(8)
                    ]

                for begun in await asyncio.gather(burst("a"), burst("b")):
                    for operation_id in begun:
                        assert (await wait_until_finished(db, operation_id))["state"] == "done"
        assert order == {"a": list(range(8)), "b": list(range(8))}

    run(scenario())


def test_next_operation_of_a_server_starts_without_sweep(database_url: str) -> None:
    async def scenario() -> None:
        async with (
            opened(database_url) as db,
            running_worker(db, ScriptedServices(only=lambda op: asyncio.sleep(0.05)), sweep=300),
        ):
            begun = [await begin_operation(db, SingleStep, server_id="s") for _ in range(4)]
            await wait_until_finished(db, begun[-1])

    run(scenario())


def test_sequence_numbers_of_a_server_become_visible_in_order(postgresql_url: str) -> None:
    async def scenario() -> None:
        async with opened(postgresql_url) as db:
            late: asyncio.Task[str]
            async with db.transaction() as tx:
                first = await begin(tx, SingleStep, server_id="s")
                late = asyncio.create_task(begin_operation(db, SingleStep, server_id="s"))
                await asyncio.sleep(0.1)
                assert not late.done()
                await asyncio.create_task(begin_operation(db, SingleStep, server_id="t"))
            assert (await get_row(db, first))["seq"] < (await get_row(db, await late))["seq"]

    run(scenario())


def test_worker_runs_at_most_its_slots(database_url: str) -> None:
    now = most = 0

    async def only(op: Operation) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.02)
        now -= 1

    async def scenario() -> None:
        async with opened(database_url) as db:
            begun = [await begin_operation(db, SingleStep) for _ in range(9)]
            async with running_worker(db, ScriptedServices(only=only), slots=2, sweep=300):
                for operation_id in begun:
                    await wait_until_finished(db, operation_id)
        assert most == 2

    run(scenario())


def test_background_operation_releases_its_slot_during_delay(database_url: str) -> None:
    class Patient(Operation, register=False):
        kind = "test patient"
        action = "patient"
        background = True
        steps = (Step("never", scripted("never"), None, deadline=300, why="it never happens"),)

    async def never(op: Operation) -> None:
        raise TransientError("not yet")

    async def scenario() -> None:
        options: dict[str, Any] = {"slots": 1, "kinds": [Patient, SingleStep], "backoff": lambda attempt: 25.0}
        async with opened(database_url) as db, running_worker(db, ScriptedServices(never=never), **options):
            waiting = await begin_operation(db, Patient)
            row = await wait_until(db, waiting, lambda row: row["attempt"] > 0)
            assert (row["state"], row["lease_owner"]) == ("queued", None)
            await wait_until_finished(db, await begin_operation(db, SingleStep))

    run(scenario())


def test_long_step_keeps_its_lease(database_url: str, frequently_renewed_lease: float) -> None:
    async def only(op: Operation) -> None:
        """Wait until the lease was renewed."""
        until = (await get_row(op.db, op.id))["lease_until"]
        while (await get_row(op.db, op.id))["lease_until"] == until:
            await asyncio.sleep(0.05)

    async def scenario() -> None:
        script = ScriptedServices(only=only)
        async with opened(database_url) as db:
            lease = frequently_renewed_lease
            async with running_worker(db, script, lease=lease), running_worker(db, script, lease=lease, sweep=0.05):
                row = await wait_until_finished(db, await begin_operation(db, SingleStep))
        assert (row["state"], row["epoch"], script.log) == ("done", 1, ["only"])

    run(scenario())


def test_operation_of_dead_worker_is_leased_after_expiry(
    database_url: str, advance_clock: Callable[[float], None]
) -> None:
    async def scenario() -> None:
        async with opened(database_url) as db:
            operation_id = await begin_operation(db, ThreeSteps)
            leased, _ = await store.lease(db, "dead", 200, ["test three"], 10)
            assert [row.id for row in leased] == [operation_id]
            assert await store.lease(db, "other", 200, ["test three"], 10) == ([], 0)
            advance_clock(200)
            async with running_worker(db, ScriptedServices(), sweep=0.05):
                row = await wait_until_finished(db, operation_id)
            assert (row["state"], row["epoch"]) == ("done", 2)

    run(scenario())


LEASE_LOSSES: dict[str, Callable[[], dict[str, Any]]] = {
    "outside step": lambda: {"two": take_lease},
    "transaction": lambda: {"one": take_lease_in_transaction},
    "retry": lambda: {"two": failing_after(take_lease, TransientError("x"))},
    "failure": lambda: {"two": failing_after(take_lease, Failed("x"))},
    "undo": lambda: {"two": failing_after(None, Failed("x")), "undo_two": take_lease},
    "failed undo": lambda: {
        "two": failing_after(None, Failed("x")),
        "undo_two": failing_after(take_lease, OSError("x")),
    },
}


async def take_lease(op: Operation) -> str:
    await take_over(op.db, op.id)
    return "my result"


async def take_lease_in_transaction(op: Operation, tx: Any) -> str:
    await tx.execute("UPDATE operations SET lease_owner = 'other', epoch = epoch + 1 WHERE id = $1", op.id)
    return "my result"


def failing_after(first: Any, error: Exception) -> Any:
    async def call(op: Operation) -> None:
        if first is not None:
            await first(op)
        raise error

    return call


@pytest.mark.parametrize("case", LEASE_LOSSES)
def test_worker_without_lease_changes_nothing(database_url: str, case: str) -> None:
    async def scenario() -> None:
        script = ScriptedServices(**LEASE_LOSSES[case]())
        async with opened(database_url) as db, running_worker(db, script) as worker:
            operation_id = await begin_operation(db, ThreeSteps)
            lost_in = case if case == "transaction" else "x"
            if lost_in == "transaction":
                # The lease is taken in the step's own transaction, which therefore must not commit.
                await wait_until(db, operation_id, lambda row: script.count("one") >= 1)
                await wait_until_idle(worker)
                row = await get_row(db, operation_id)
                assert (row["step"], row["results"], row["epoch"]) == ("one", "{}", 1)
                return
            taken = await wait_until(db, operation_id, lambda row: row["lease_owner"] == "other")
            steps = await db.fetch_value("SELECT COUNT(*) AS n FROM operation_steps")
            await wait_until_idle(worker)
            assert await get_row(db, operation_id) == taken
            assert await db.fetch_value("SELECT COUNT(*) AS n FROM operation_steps") == steps

    run(scenario())


def test_progress_report_without_lease_is_refused(database_url: str) -> None:
    async def two(op: Operation) -> None:
        await take_over(op.db, op.id)
        with pytest.raises(LostLease):
            await op.report(50)
        script.log.append("refused")

    script = ScriptedServices(two=two)

    async def scenario() -> None:
        async with opened(database_url) as db, running_worker(db, script):
            operation_id = await begin_operation(db, ThreeSteps)
            await wait_until(db, operation_id, lambda row: "refused" in script.log)
            row = await get_row(db, operation_id)
            assert (row["progress"], row["step"]) == (None, "two")

    run(scenario())


def test_renewal_stops_step_with_lost_lease(database_url: str, frequently_renewed_lease: float) -> None:
    async def two(op: Operation) -> None:
        await take_over(op.db, op.id)
        try:
            await asyncio.sleep(600)
        finally:
            script.log.append("stopped")

    script = ScriptedServices(two=two)

    async def scenario() -> None:
        async with opened(database_url) as db, running_worker(db, script, lease=frequently_renewed_lease):
            operation_id = await begin_operation(db, ThreeSteps)
            await wait_until(db, operation_id, lambda row: "stopped" in script.log)
            row = await get_row(db, operation_id)
            assert (row["lease_owner"], row["step"]) == ("other", "two")

    run(scenario())


class UnreliableDatabase:
    """A database that can become unavailable."""

    def __init__(self, db: Database) -> None:
        self.db = db
        self.cut = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.db, name)

    @asynccontextmanager
    async def transaction(self) -> Any:
        if self.cut:
            raise Unavailable("cut off")
        async with self.db.transaction() as tx:
            yield tx


def test_worker_that_cannot_renew_stops_its_steps(database_url: str) -> None:
    async def two(op: Operation) -> None:
        op.db.cut = True  # type: ignore[attr-defined]
        try:
            await asyncio.sleep(600)
        finally:
            script.log.append("stopped")

    script = ScriptedServices(two=two)

    async def scenario() -> None:
        async with opened(database_url) as db:
            failing = UnreliableDatabase(db)
            async with running_worker(failing, script, lease=0.3):  # type: ignore[arg-type]
                operation_id = await begin_operation(db, ThreeSteps)
                await wait_until(db, operation_id, lambda row: "stopped" in script.log)
            assert (await get_row(db, operation_id))["step"] == "two"

    run(scenario())


def test_unavailable_database_is_retried(database_url: str) -> None:
    async def two(op: Operation) -> None:
        if script.count("two") == 1:
            op.db.cut = True  # type: ignore[attr-defined]
            asyncio.get_running_loop().call_later(0.2, setattr, op.db, "cut", False)

    script = ScriptedServices(two=two)

    async def scenario() -> None:
        async with opened(database_url) as db, running_worker(UnreliableDatabase(db), script):  # type: ignore[arg-type]
            assert (await wait_until_finished(db, await begin_operation(db, ThreeSteps)))["state"] == "done"

    run(scenario())


class OldRelease(RecordedFailure, register=False):
    kind = "test releases"
    action = "release"
    steps = (
        Step("first", scripted("first"), scripted("undo_first"), deadline=300),
        Step("old", scripted("old"), scripted("undo_old"), deadline=300),
    )


class NewRelease(RecordedFailure, register=False):
    kind = "test releases"
    action = "release"
    steps = (
        Step("first", scripted("first"), scripted("undo_first"), deadline=300),
        Step("new", scripted("new"), scripted("undo_new"), deadline=300),
    )
    retired = (Step("old", scripted("old"), scripted("undo_old"), deadline=300),)


def test_newer_release_continues_older_operation(database_url: str) -> None:
    async def scenario() -> None:
        script = ScriptedServices()
        async with opened(database_url) as db:
            operation_id = await begin_operation(db, OldRelease)
            async with running_worker(db, script, kinds=[NewRelease]):
                assert (await wait_until_finished(db, operation_id))["state"] == "done"
            assert script.log == ["first", "old"]

    run(scenario())


def test_operation_with_unknown_step_is_stuck(database_url: str) -> None:
    async def scenario() -> None:
        script = ScriptedServices()
        async with opened(database_url) as db:
            operation_id = await begin_operation(db, NewRelease, server_id="s")
            async with running_worker(db, script, kinds=[OldRelease]):
                row = await wait_until(db, operation_id, lambda row: row["trouble"] is not None)
            assert (row["state"], row["lease_owner"], script.log) == ("queued", None, [])
            [stuck] = await views.find_stuck(db)
            assert (stuck.id, stuck.reason) == (operation_id, "This release does not know the step 'new'")
            async with db.transaction() as tx:
                await tx.execute("UPDATE operations SET run_at = 0")
            async with running_worker(db, script, kinds=[NewRelease]):
                assert (await wait_until_finished(db, operation_id))["state"] == "done"

    run(scenario())


def test_unreadable_row_does_not_affect_others(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as db:
            broken = await begin_operation(db, SingleStep)
            async with db.transaction() as tx:
                await tx.execute("UPDATE operations SET params = 'no document'")
            good = await begin_operation(db, SingleStep)
            async with running_worker(db, ScriptedServices()):
                assert (await wait_until_finished(db, good))["state"] == "done"
            [stuck] = await views.find_stuck(db)
            assert stuck.id == broken
            assert "cannot be read" in (stuck.reason or "")

    run(scenario())


def test_operation_of_unknown_kind_is_stuck(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as db:
            operation_id = await begin_operation(db, NewRelease)
            async with running_worker(db, ScriptedServices(), kinds=[ThreeSteps]):
                row = await wait_until(db, operation_id, lambda row: row["trouble"] is not None)
            assert (row["state"], row["epoch"]) == ("queued", 0)
            [stuck] = await views.find_stuck(db)
            assert (stuck.id, stuck.reason) == (operation_id, "No worker of this release knows this operation")
            async with running_worker(db, ScriptedServices(), kinds=[NewRelease]):
                row = await wait_until_finished(db, operation_id)
            assert (row["state"], row["trouble"]) == ("done", None)

    run(scenario())


def test_stopping_worker_finishes_step_and_releases_lease(database_url: str) -> None:
    async def scenario() -> None:
        async def two(op: Operation) -> None:
            while not worker.stopping:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)

        script = ScriptedServices(two=two)
        async with opened(database_url) as db, running_worker(db, script, sweep=300) as worker:
            operation_id = await begin_operation(db, ThreeSteps)
            await wait_until(db, operation_id, lambda row: "two" in script.log)
            await worker.stop(grace=60)
            row = await get_row(db, operation_id)
            assert (row["state"], row["step"], row["lease_until"]) == ("queued", "three", 0)
            async with running_worker(db, script, sweep=300):
                assert (await wait_until_finished(db, operation_id))["state"] == "done"
            assert script.log == ["one", "two", "three"]

    run(scenario())


@pytest.mark.parametrize("undo", [False, True])
def test_step_longer_than_grace_is_repeated_by_another_worker(database_url: str, undo: bool) -> None:
    async def slow(op: Operation) -> None:
        if script.count("undo_two" if undo else "two") == 1:
            await asyncio.sleep(600)

    script = ScriptedServices(
        **({"three": failing_after(None, Failed("no")), "undo_two": slow} if undo else {"two": slow})
    )

    async def scenario() -> None:
        async with opened(database_url) as db, running_worker(db, script, sweep=300) as worker:
            operation_id = await begin_operation(db, ThreeSteps)
            await wait_until(db, operation_id, lambda row: ("undo_two" if undo else "two") in script.log)
            await worker.stop(grace=0.05)
            row = await get_row(db, operation_id)
            assert (row["state"], row["step"]) == ("undoing" if undo else "queued", "two")
            assert (row["lease_owner"], row["lease_until"]) == (None, 0)
            async with running_worker(db, script, sweep=300):
                assert (await wait_until_finished(db, operation_id))["state"] == ("failed" if undo else "done")

    run(scenario())


def test_idle_worker_stops_immediately(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as db, running_worker(db, ScriptedServices(), sweep=300) as worker:
            operation_id = await begin_operation(db, WaitingOperation, server_id="s")
            await wait_until(db, operation_id, lambda row: row["state"] == "waiting")
            async with asyncio.timeout(20):
                await worker.stop(grace=30)
            assert (await get_row(db, operation_id))["state"] == "waiting"

    run(scenario())


def test_fault_that_is_no_text_is_stored_as_text(database_url: str) -> None:
    async def two(op: Operation) -> None:
        raise Failed("no", fault={"when": asyncio, 3: "non-string key"})  # type: ignore[arg-type]

    async def scenario() -> None:
        async with opened(database_url) as db, running_worker(db, ScriptedServices(two=two)):
            error = orjson.loads((await wait_until_finished(db, await begin_operation(db, ThreeSteps)))["error"])
            assert "3: 'non-string key'" in error["fault"]

    run(scenario())


def test_result_that_is_not_json_fails_the_step(database_url: str) -> None:
    async def two(op: Operation) -> Any:
        return {"module": asyncio}

    async def scenario() -> None:
        async with opened(database_url) as db, running_worker(db, ScriptedServices(two=two)):
            row = await wait_until_finished(db, await begin_operation(db, ThreeSteps))
            assert (row["state"], orjson.loads(row["error"])["type"]) == ("failed", "Unexpected")

    run(scenario())


def test_every_lease_raises_the_mark_of_the_database(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as db:
            before = await incarnation.set_up(db)
            numbers: list[int] = []
            async with running_worker(db, ScriptedServices(), sweep=0.05, on_lease=numbers.append):
                for _ in range(2):
                    await wait_until_finished(db, await begin_operation(db, SingleStep))
            assert await incarnation.read(db) == before._replace(leases=2)
            assert [number for number in numbers if number] == [1, 2]

    run(scenario())
