"""Undo: order, failing undos, and going back to an earlier step."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from kilonova.operations import Failed, GoBack, Operation, Step, StepResult
from tests.operations.support import (
    RecordedFailure,
    ScriptedServices,
    ThreeSteps,
    begin_operation,
    recorded_steps,
    running_worker,
    scripted,
    wait_until,
    wait_until_finished,
)
from tests.support import run
from tests.support.databases import opened


class PlacementOperation(RecordedFailure):
    kind = "test placed"
    action = "place"
    steps = (
        Step("prepare", scripted("prepare"), scripted("undo_prepare"), deadline=300),
        Step(
            StepResult("claim", str),
            scripted("claim"),
            scripted("undo_claim"),
            deadline=300,
            transaction=True,
            undo_transaction=True,
        ),
        Step("look", scripted("look"), None, deadline=300, why="it only looks"),
        Step("spawn", scripted("spawn"), scripted("undo_spawn"), deadline=300),
    )


async def refuse(op: Operation, *tx: Any) -> None:
    raise Failed("no")


@pytest.mark.parametrize(
    "step, log",
    [
        ("one", ["one", "undo_one", "failed"]),
        ("two", ["one", "two", "undo_two", "undo_one", "failed"]),
        ("three", ["one", "two", "three", "undo_two", "undo_one", "failed"]),
    ],
)
def test_failed_step_and_earlier_steps_are_undone(database_url: str, step: str, log: list[str]) -> None:
    async def scenario() -> None:
        script = ScriptedServices(**{step: refuse})
        async with opened(database_url) as db, running_worker(db, script):
            operation_id = await begin_operation(db, ThreeSteps)
            row = await wait_until_finished(db, operation_id)
            assert (row["state"], script.log, orjson.loads(row["results"])) == ("failed", log, {})
            assert (await recorded_steps(db, operation_id))[-1] == ("one", "undo", "done")

    run(scenario())


def test_undo_sees_only_recorded_state(database_url: str) -> None:
    seen: dict[str, Any] = {}

    async def one(op: Operation, tx: Any) -> str:
        return "claimed"

    async def two(op: Operation) -> None:
        op.note["lost"] = True
        raise Failed("no")

    async def undo_two(op: Operation) -> None:
        seen["two"] = (dict(op.results), dict(op.note))

    async def scenario() -> None:
        async with (
            opened(database_url) as db,
            running_worker(db, ScriptedServices(one=one, two=two, undo_two=undo_two)),
        ):
            await wait_until_finished(db, await begin_operation(db, ThreeSteps))
        assert seen["two"] == ({"one": "claimed"}, {})

    run(scenario())


@pytest.mark.parametrize("name", ["undo_two", "failed"])
def test_failing_undo_is_retried_without_limit(database_url: str, name: str) -> None:
    healed = False

    async def broken(op: Operation, *rest: Any) -> None:
        if not healed:
            raise OSError("disk on fire")

    async def scenario() -> None:
        nonlocal healed
        script = ScriptedServices(two=refuse, **{name: broken})
        async with opened(database_url) as db, running_worker(db, script):
            operation_id = await begin_operation(db, ThreeSteps)
            row = await wait_until(db, operation_id, lambda row: row["attempt"] > 6)
            assert row["state"] == "undoing"
            assert "OSError" in orjson.loads(row["trouble"])["message"]
            assert orjson.loads(row["error"])["message"] == "no"
            healed = True
            row = await wait_until_finished(db, operation_id)
            assert (row["state"], row["trouble"], row["attempt"]) == ("failed", None, 0)
            assert len(await recorded_steps(db, operation_id)) == 4

    run(scenario())


def test_hanging_undo_is_interrupted_and_retried(database_url: str) -> None:
    import asyncio

    class Hanging(Operation, register=False):
        kind = "test hanging undo"
        action = "hang"
        steps = (Step("only", scripted("only"), scripted("undo"), deadline=0.5),)

    async def undo(op: Operation) -> None:
        if script.count("undo") == 1:
            await asyncio.sleep(600)

    script = ScriptedServices(only=refuse, undo=undo)

    async def scenario() -> None:
        async with opened(database_url) as db, running_worker(db, script, kinds=[Hanging]):
            assert (await wait_until_finished(db, await begin_operation(db, Hanging)))["state"] == "failed"
            assert script.log[-2:] == ["undo", "undo"]

    run(scenario())


def test_go_back_undoes_down_to_the_step_and_keeps_note(database_url: str) -> None:
    async def claim(op: Operation, tx: Any) -> str:
        return next(host for host in ("h1", "h2", "h3") if host not in op.note.get("excluded", []))

    async def spawn(op: Operation) -> None:
        host = op.results["claim"]
        if host != "h3":
            excluded = [*op.note.get("excluded", []), host]
            raise GoBack("claim", note={"excluded": excluded}, reason=f"{host} refused")

    async def scenario() -> None:
        script = ScriptedServices(claim=claim, spawn=spawn)
        async with opened(database_url) as db, running_worker(db, script):
            operation_id = await begin_operation(db, PlacementOperation)
            row = await wait_until_finished(db, operation_id)
            round_of = ["claim", "look", "spawn", "undo_spawn", "undo_claim"]
            assert script.log == ["prepare", *round_of, *round_of, "claim", "look", "spawn"]
            assert (row["state"], row["round"], row["error"]) == ("done", 3, None)
            assert orjson.loads(row["results"]) == {"claim": "h3"}
            assert ("spawn", "forward", "went back") in await recorded_steps(db, operation_id)

    run(scenario())


def test_go_back_fails_after_last_round_with_last_reason(database_url: str) -> None:
    async def spawn(op: Operation) -> None:
        raise GoBack("claim", reason=f"refused in round {op.round}")

    async def scenario() -> None:
        script = ScriptedServices(spawn=spawn)
        async with opened(database_url) as db, running_worker(db, script):
            row = await wait_until_finished(db, await begin_operation(db, PlacementOperation))
            assert (row["state"], row["round"]) == ("failed", 3)
            assert orjson.loads(row["error"])["message"] == "refused in round 3"
            assert (script.count("spawn"), script.count("undo_prepare"), script.log[-1]) == (3, 1, "failed")

    run(scenario())


def test_fault_of_last_round_is_kept(database_url: str) -> None:
    async def spawn(op: Operation) -> None:
        raise GoBack("claim", reason="refused", fault=f"h{op.round}: no")

    async def scenario() -> None:
        async with opened(database_url) as db, running_worker(db, ScriptedServices(spawn=spawn)):
            row = await wait_until_finished(db, await begin_operation(db, PlacementOperation))
            error = orjson.loads(row["error"])
            assert (error["message"], error["fault"]) == ("refused", "h3: no")

    run(scenario())


def test_go_back_to_a_later_step_fails(database_url: str) -> None:
    async def claim(op: Operation, tx: Any) -> None:
        raise GoBack("spawn", reason="lost")

    async def scenario() -> None:
        async with opened(database_url) as db, running_worker(db, ScriptedServices(claim=claim)):
            row = await wait_until_finished(db, await begin_operation(db, PlacementOperation))
            assert (row["state"], row["round"]) == ("failed", 1)
            assert "cannot go back to 'spawn'" in orjson.loads(row["error"])["message"]

    run(scenario())


def test_transactional_step_and_its_record_are_atomic(database_url: str) -> None:
    async def one(op: Operation, tx: Any) -> None:
        await tx.execute("INSERT INTO operation_events (key, payload, created_at) VALUES ('mine', '1', 1e12)")
        if script.count("one") == 1:
            raise ConnectionError("the process dies here, nearly")

    script = ScriptedServices(one=one)

    async def scenario() -> None:
        async with opened(database_url) as db, running_worker(db, script):
            assert (await wait_until_finished(db, await begin_operation(db, ThreeSteps)))["state"] == "failed"
            assert await db.fetch_value("SELECT COUNT(*) AS n FROM operation_events") == 0
            assert (await wait_until_finished(db, await begin_operation(db, ThreeSteps)))["state"] == "done"
            assert await db.fetch_value("SELECT COUNT(*) AS n FROM operation_events") == 1

    run(scenario())
