"""Leases: one holder, one operation per server at a time, and nothing for whoever lost it."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest

from kilonova.operations import Failed, LostLease, Operation, Passing, Step, begin, store, views
from kilonova.store import Database, Unavailable
from tests.operations.support import Noted, Script, Three, Waiting, act, finished, idle, row_of, start, until, working
from tests.support import run
from tests.support.databases import opened


class One(Operation):
    kind = "test one"
    action = "one"
    steps = (Step("only", act("only"), act("undo"), deadline=300),)


async def steal(db: Database, identity: str) -> None:
    """What another worker does when the lease ran out."""
    async with db.transaction() as tx:
        await tx.execute(
            "UPDATE operations SET lease_owner = 'thief', lease_until = 1e12, epoch = epoch + 1 WHERE id = $1", identity
        )


def test_operations_of_a_server_run_one_after_the_other_with_two_workers(database_url: str) -> None:
    running: defaultdict[str | None, int] = defaultdict(int)
    order: defaultdict[str | None, list[int]] = defaultdict(list)

    async def only(op: Operation) -> None:
        running[op.server_id] += 1
        assert running[op.server_id] == 1
        order[op.server_id].append(op.params["number"])
        await asyncio.sleep(0.01)
        running[op.server_id] -= 1

    async def scenario() -> None:
        script = Script(only=only)
        async with opened(database_url) as db, opened(database_url) as other:
            async with working(db, script), working(other, script):

                async def burst(server: str) -> list[str]:
                    return [await start(db, One, server_id=server, params={"number": n}) for n in range(8)]

                for begun in await asyncio.gather(burst("a"), burst("b")):
                    for identity in begun:
                        assert (await finished(db, identity))["state"] == "done"
        assert order == {"a": list(range(8)), "b": list(range(8))}

    run(scenario())


def test_the_next_of_a_server_starts_without_waiting_for_the_sweep(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as db, working(db, Script(only=lambda op: asyncio.sleep(0.05)), sweep=300):
            begun = [await start(db, One, server_id="s") for _ in range(4)]
            await finished(db, begun[-1])

    run(scenario())


def test_numbers_of_a_server_become_visible_in_their_order(postgresql_url: str) -> None:
    async def scenario() -> None:
        async with opened(postgresql_url) as db:
            late: asyncio.Task[str]
            async with db.transaction() as tx:
                first = await begin(tx, One, server_id="s")
                late = asyncio.create_task(start(db, One, server_id="s"))
                await asyncio.sleep(0.1)
                assert not late.done()
                await asyncio.create_task(start(db, One, server_id="t"))
            assert (await row_of(db, first))["seq"] < (await row_of(db, await late))["seq"]

    run(scenario())


def test_no_more_than_the_slots_run_and_the_rest_follows_at_once(database_url: str) -> None:
    now = most = 0

    async def only(op: Operation) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.02)
        now -= 1

    async def scenario() -> None:
        async with opened(database_url) as db:
            begun = [await start(db, One) for _ in range(9)]
            async with working(db, Script(only=only), slots=2, sweep=300):
                for identity in begun:
                    await finished(db, identity)
        assert most == 2

    run(scenario())


def test_what_is_in_the_background_has_no_slot_while_it_pauses(database_url: str) -> None:
    class Patient(Operation, register=False):
        kind = "test patient"
        action = "patient"
        background = True
        steps = (Step("never", act("never"), None, deadline=300, why="it never happens"),)

    async def never(op: Operation) -> None:
        raise Passing("not yet")

    async def scenario() -> None:
        options: dict[str, Any] = {"slots": 1, "kinds": [Patient, One], "backoff": lambda attempt: 25.0}
        async with opened(database_url) as db, working(db, Script(never=never), **options):
            waiting = await start(db, Patient)
            row = await until(db, waiting, lambda row: row["attempt"] > 0)
            assert (row["state"], row["lease_owner"]) == ("queued", None)
            await finished(db, await start(db, One))

    run(scenario())


def test_a_long_step_keeps_its_lease(database_url: str, renewed_often: float) -> None:
    async def only(op: Operation) -> None:
        """Until it was renewed."""
        until = (await row_of(op.db, op.id))["lease_until"]
        while (await row_of(op.db, op.id))["lease_until"] == until:
            await asyncio.sleep(0.05)

    async def scenario() -> None:
        script = Script(only=only)
        async with opened(database_url) as db:
            lease = renewed_often
            async with working(db, script, lease=lease), working(db, script, lease=lease, sweep=0.05):
                row = await finished(db, await start(db, One))
        assert (row["state"], row["epoch"], script.log) == ("done", 1, ["only"])

    run(scenario())


def test_a_dead_workers_operation_is_taken_over_when_the_lease_ends(
    database_url: str, let_pass: Callable[[float], None]
) -> None:
    async def scenario() -> None:
        async with opened(database_url) as db:
            identity = await start(db, Three)
            leased = await store.lease(db, "dead", 200, ["test three"], 10)
            assert [row["id"] for row in leased] == [identity]
            assert await store.lease(db, "other", 200, ["test three"], 10) == []
            let_pass(200)
            async with working(db, Script(), sweep=0.05):
                row = await finished(db, identity)
            assert (row["state"], row["epoch"]) == ("done", 2)

    run(scenario())


LOSERS: dict[str, Callable[[], dict[str, Any]]] = {
    "outside step": lambda: {"two": thieving},
    "transaction": lambda: {"one": from_outside},
    "retry": lambda: {"two": then(thieving, Passing("x"))},
    "failure": lambda: {"two": then(thieving, Failed("x"))},
    "undo": lambda: {"two": then(None, Failed("x")), "undo_two": thieving},
    "failed undo": lambda: {"two": then(None, Failed("x")), "undo_two": then(thieving, OSError("x"))},
}


async def thieving(op: Operation) -> str:
    await steal(op.db, op.id)
    return "my result"


async def from_outside(op: Operation, tx: Any) -> str:
    await tx.execute("UPDATE operations SET lease_owner = 'thief', epoch = epoch + 1 WHERE id = $1", op.id)
    return "my result"


def then(first: Any, error: Exception) -> Any:
    async def call(op: Operation) -> None:
        if first is not None:
            await first(op)
        raise error

    return call


@pytest.mark.parametrize("case", LOSERS)
def test_whoever_lost_the_lease_changes_nothing(database_url: str, case: str) -> None:
    async def scenario() -> None:
        script = Script(**LOSERS[case]())
        async with opened(database_url) as db, working(db, script) as worker:
            identity = await start(db, Three)
            stolen_in = case if case == "transaction" else "x"
            if stolen_in == "transaction":
                # The theft is part of the very transaction that then may not commit.
                await until(db, identity, lambda row: script.count("one") >= 1)
                await idle(worker)
                row = await row_of(db, identity)
                assert (row["step"], row["results"], row["epoch"]) == ("one", "{}", 1)
                return
            taken = await until(db, identity, lambda row: row["lease_owner"] == "thief")
            steps = await db.fetch_value("SELECT COUNT(*) AS n FROM operation_steps")
            await idle(worker)
            assert await row_of(db, identity) == taken
            assert await db.fetch_value("SELECT COUNT(*) AS n FROM operation_steps") == steps

    run(scenario())


def test_a_report_without_the_lease_is_refused(database_url: str) -> None:
    async def two(op: Operation) -> None:
        await steal(op.db, op.id)
        with pytest.raises(LostLease):
            await op.report(50)
        script.log.append("refused")

    script = Script(two=two)

    async def scenario() -> None:
        async with opened(database_url) as db, working(db, script):
            identity = await start(db, Three)
            await until(db, identity, lambda row: "refused" in script.log)
            row = await row_of(db, identity)
            assert (row["progress"], row["step"]) == (None, "two")

    run(scenario())


def test_a_step_is_stopped_when_the_renewal_finds_the_lease_gone(database_url: str, renewed_often: float) -> None:
    async def two(op: Operation) -> None:
        await steal(op.db, op.id)
        try:
            await asyncio.sleep(600)
        finally:
            script.log.append("stopped")

    script = Script(two=two)

    async def scenario() -> None:
        async with opened(database_url) as db, working(db, script, lease=renewed_often):
            identity = await start(db, Three)
            await until(db, identity, lambda row: "stopped" in script.log)
            row = await row_of(db, identity)
            assert (row["lease_owner"], row["step"]) == ("thief", "two")

    run(scenario())


class Failing:
    """A database that can be cut off."""

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


def test_a_worker_that_cannot_renew_stops_its_steps_itself(database_url: str) -> None:
    async def two(op: Operation) -> None:
        op.db.cut = True  # type: ignore[attr-defined]
        try:
            await asyncio.sleep(600)
        finally:
            script.log.append("stopped")

    script = Script(two=two)

    async def scenario() -> None:
        async with opened(database_url) as db:
            failing = Failing(db)
            async with working(failing, script, lease=0.3):  # type: ignore[arg-type]
                identity = await start(db, Three)
                await until(db, identity, lambda row: "stopped" in script.log)
            assert (await row_of(db, identity))["step"] == "two"

    run(scenario())


def test_trouble_with_the_database_passes(database_url: str) -> None:
    async def two(op: Operation) -> None:
        if script.count("two") == 1:
            op.db.cut = True  # type: ignore[attr-defined]
            asyncio.get_running_loop().call_later(0.2, setattr, op.db, "cut", False)

    script = Script(two=two)

    async def scenario() -> None:
        async with opened(database_url) as db, working(Failing(db), script):  # type: ignore[arg-type]
            assert (await finished(db, await start(db, Three)))["state"] == "done"

    run(scenario())


class Old(Noted, register=False):
    kind = "test releases"
    action = "release"
    steps = (
        Step("first", act("first"), act("undo_first"), deadline=300),
        Step("old", act("old"), act("undo_old"), deadline=300),
    )


class New(Noted, register=False):
    kind = "test releases"
    action = "release"
    steps = (
        Step("first", act("first"), act("undo_first"), deadline=300),
        Step("new", act("new"), act("undo_new"), deadline=300),
    )
    retired = (Step("old", act("old"), act("undo_old"), deadline=300),)


def test_a_newer_release_goes_on_with_an_older_ones_operation(database_url: str) -> None:
    async def scenario() -> None:
        script = Script()
        async with opened(database_url) as db:
            identity = await start(db, Old)
            async with working(db, script, kinds=[New]):
                assert (await finished(db, identity))["state"] == "done"
            assert script.log == ["first", "old"]

    run(scenario())


def test_an_unknown_step_is_left_alone_and_shown(database_url: str) -> None:
    async def scenario() -> None:
        script = Script()
        async with opened(database_url) as db:
            identity = await start(db, New, server_id="s")
            async with working(db, script, kinds=[Old]):
                row = await until(db, identity, lambda row: row["trouble"] is not None)
            assert (row["state"], row["lease_owner"], script.log) == ("queued", None, [])
            [stuck] = await views.stuck(db)
            assert (stuck.id, stuck.reason) == (identity, "This release does not know the step 'new'")
            async with db.transaction() as tx:
                await tx.execute("UPDATE operations SET run_at = 0")
            async with working(db, script, kinds=[New]):
                assert (await finished(db, identity))["state"] == "done"

    run(scenario())


def test_a_row_that_cannot_be_read_harms_no_other(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as db:
            broken = await start(db, One)
            async with db.transaction() as tx:
                await tx.execute("UPDATE operations SET params = 'no document'")
            good = await start(db, One)
            async with working(db, Script()):
                assert (await finished(db, good))["state"] == "done"
            [stuck] = await views.stuck(db)
            assert stuck.id == broken
            assert "cannot be read" in (stuck.reason or "")

    run(scenario())


def test_an_unknown_kind_is_left_alone_and_shown(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as db:
            identity = await start(db, New)
            async with working(db, Script(), kinds=[Three]):
                row = await until(db, identity, lambda row: row["trouble"] is not None)
            assert (row["state"], row["epoch"]) == ("queued", 0)
            [stuck] = await views.stuck(db)
            assert (stuck.id, stuck.reason) == (identity, "No worker of this release knows this kind")
            async with working(db, Script(), kinds=[New]):
                row = await finished(db, identity)
            assert (row["state"], row["trouble"]) == ("done", None)

    run(scenario())


def test_a_stopping_worker_lets_the_step_end_and_another_goes_on_at_once(database_url: str) -> None:
    async def scenario() -> None:
        async def two(op: Operation) -> None:
            while not worker.stopping:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)

        script = Script(two=two)
        async with opened(database_url) as db, working(db, script, sweep=300) as worker:
            identity = await start(db, Three)
            await until(db, identity, lambda row: "two" in script.log)
            await worker.stop(grace=60)
            row = await row_of(db, identity)
            assert (row["state"], row["step"], row["lease_until"]) == ("queued", "three", 0)
            async with working(db, script, sweep=300):
                assert (await finished(db, identity))["state"] == "done"
            assert script.log == ["one", "two", "three"]

    run(scenario())


@pytest.mark.parametrize("undo", [False, True])
def test_a_step_that_outlasts_the_grace_is_run_again_elsewhere(database_url: str, undo: bool) -> None:
    async def slow(op: Operation) -> None:
        if script.count("undo_two" if undo else "two") == 1:
            await asyncio.sleep(600)

    script = Script(**({"three": then(None, Failed("no")), "undo_two": slow} if undo else {"two": slow}))

    async def scenario() -> None:
        async with opened(database_url) as db, working(db, script, sweep=300) as worker:
            identity = await start(db, Three)
            await until(db, identity, lambda row: ("undo_two" if undo else "two") in script.log)
            await worker.stop(grace=0.05)
            row = await row_of(db, identity)
            assert (row["state"], row["step"]) == ("undoing" if undo else "queued", "two")
            assert (row["lease_owner"], row["lease_until"]) == (None, 0)
            async with working(db, script, sweep=300):
                assert (await finished(db, identity))["state"] == ("failed" if undo else "done")

    run(scenario())


def test_stopping_an_idle_worker_takes_no_time(database_url: str) -> None:
    async def scenario() -> None:
        async with opened(database_url) as db, working(db, Script(), sweep=300) as worker:
            identity = await start(db, Waiting, server_id="s")
            await until(db, identity, lambda row: row["state"] == "waiting")
            async with asyncio.timeout(20):
                await worker.stop(grace=30)
            assert (await row_of(db, identity))["state"] == "waiting"

    run(scenario())


def test_errors_are_written_as_documents(database_url: str) -> None:
    async def two(op: Operation) -> None:
        raise Failed("no", fault={"when": asyncio, 3: "non-string key"})

    async def scenario() -> None:
        async with opened(database_url) as db, working(db, Script(two=two)):
            error = orjson.loads((await finished(db, await start(db, Three)))["error"])
            assert error["fault"]["3"] == "non-string key"

    run(scenario())


def test_a_result_that_is_no_document_fails_the_step(database_url: str) -> None:
    async def two(op: Operation) -> Any:
        return {"set": {1, 2}}

    async def scenario() -> None:
        async with opened(database_url) as db, working(db, Script(two=two)):
            row = await finished(db, await start(db, Three))
            assert (row["state"], orjson.loads(row["error"])["type"]) == ("failed", "Unexpected")

    run(scenario())
