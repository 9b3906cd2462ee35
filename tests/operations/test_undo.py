"""Failure: undo in reverse order, undos that fail, going back."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from kilonova.operations import Failed, GoBack, Operation, Step
from tests.operations.support import Noted, Script, Three, act, finished, start, steps_of, until, working
from tests.support import run
from tests.support.databases import opened


class Placed(Noted):
    kind = "test placed"
    action = "place"
    steps = (
        Step("prepare", act("prepare"), act("undo_prepare"), deadline=300),
        Step("claim", act("claim"), act("undo_claim"), deadline=300, transaction=True, undo_transaction=True),
        Step("look", act("look"), None, deadline=300, why="it only looks"),
        Step("spawn", act("spawn"), act("undo_spawn"), deadline=300),
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
def test_the_failed_step_and_those_before_it_are_undone(database_url: str, step: str, log: list[str]) -> None:
    async def scenario() -> None:
        script = Script(**{step: refuse})
        async with opened(database_url) as db, working(db, script):
            identity = await start(db, Three)
            row = await finished(db, identity)
            assert (row["state"], script.log, orjson.loads(row["results"])) == ("failed", log, {})
            assert (await steps_of(db, identity))[-1] == ("one", "undo", "done")

    run(scenario())


def test_an_undo_sees_what_was_recorded_and_nothing_else(database_url: str) -> None:
    seen: dict[str, Any] = {}

    async def one(op: Operation, tx: Any) -> str:
        return "claimed"

    async def two(op: Operation) -> None:
        op.note["lost"] = True
        raise Failed("no")

    async def undo_two(op: Operation) -> None:
        seen["two"] = (dict(op.results), dict(op.note))

    async def scenario() -> None:
        async with opened(database_url) as db, working(db, Script(one=one, two=two, undo_two=undo_two)):
            await finished(db, await start(db, Three))
        assert seen["two"] == ({"one": "claimed"}, {})

    run(scenario())


@pytest.mark.parametrize("name", ["undo_two", "failed"])
def test_an_undo_that_fails_is_tried_for_ever_and_shown(database_url: str, name: str) -> None:
    healed = False

    async def broken(op: Operation, *rest: Any) -> None:
        if not healed:
            raise OSError("disk on fire")

    async def scenario() -> None:
        nonlocal healed
        script = Script(two=refuse, **{name: broken})
        async with opened(database_url) as db, working(db, script):
            identity = await start(db, Three)
            row = await until(db, identity, lambda row: row["attempt"] > 6)
            assert row["state"] == "undoing"
            assert "OSError" in orjson.loads(row["trouble"])["message"]
            assert orjson.loads(row["error"])["message"] == "no"
            healed = True
            row = await finished(db, identity)
            assert (row["state"], row["trouble"], row["attempt"]) == ("failed", None, 0)
            assert len(await steps_of(db, identity)) == 4

    run(scenario())


def test_an_undo_that_hangs_is_cut_off_and_tried_again(database_url: str) -> None:
    import asyncio

    class Hanging(Operation, register=False):
        kind = "test hanging undo"
        action = "hang"
        steps = (Step("only", act("only"), act("undo"), deadline=0.5),)

    async def undo(op: Operation) -> None:
        if script.count("undo") == 1:
            await asyncio.sleep(600)

    script = Script(only=refuse, undo=undo)

    async def scenario() -> None:
        async with opened(database_url) as db, working(db, script, kinds=[Hanging]):
            assert (await finished(db, await start(db, Hanging)))["state"] == "failed"
            assert script.log[-2:] == ["undo", "undo"]

    run(scenario())


def test_go_back_undoes_down_to_the_step_and_takes_the_note_along(database_url: str) -> None:
    async def claim(op: Operation, tx: Any) -> str:
        return next(host for host in ("h1", "h2", "h3") if host not in op.note.get("excluded", []))

    async def spawn(op: Operation) -> None:
        host = op.results["claim"]
        if host != "h3":
            excluded = [*op.note.get("excluded", []), host]
            raise GoBack("claim", note={"excluded": excluded}, reason=f"{host} refused")

    async def scenario() -> None:
        script = Script(claim=claim, spawn=spawn)
        async with opened(database_url) as db, working(db, script):
            identity = await start(db, Placed)
            row = await finished(db, identity)
            round_of = ["claim", "look", "spawn", "undo_spawn", "undo_claim"]
            assert script.log == ["prepare", *round_of, *round_of, "claim", "look", "spawn"]
            assert (row["state"], row["round"], row["error"]) == ("done", 3, None)
            assert orjson.loads(row["results"]) == {"claim": "h3"}
            assert ("spawn", "forward", "went back") in await steps_of(db, identity)

    run(scenario())


def test_go_back_ends_after_the_last_round_with_the_last_reason(database_url: str) -> None:
    async def spawn(op: Operation) -> None:
        raise GoBack("claim", reason=f"refused in round {op.round}")

    async def scenario() -> None:
        script = Script(spawn=spawn)
        async with opened(database_url) as db, working(db, script):
            row = await finished(db, await start(db, Placed))
            assert (row["state"], row["round"]) == ("failed", 3)
            assert orjson.loads(row["error"])["message"] == "refused in round 3"
            assert (script.count("spawn"), script.count("undo_prepare"), script.log[-1]) == (3, 1, "failed")

    run(scenario())


def test_what_the_last_round_keeps_for_administrators_stays(database_url: str) -> None:
    async def spawn(op: Operation) -> None:
        raise GoBack("claim", reason="refused", fault=f"h{op.round}: no")

    async def scenario() -> None:
        async with opened(database_url) as db, working(db, Script(spawn=spawn)):
            row = await finished(db, await start(db, Placed))
            error = orjson.loads(row["error"])
            assert (error["message"], error["fault"]) == ("refused", "h3: no")

    run(scenario())


def test_going_back_to_a_step_that_is_not_behind_fails(database_url: str) -> None:
    async def claim(op: Operation, tx: Any) -> None:
        raise GoBack("spawn", reason="lost")

    async def scenario() -> None:
        async with opened(database_url) as db, working(db, Script(claim=claim)):
            row = await finished(db, await start(db, Placed))
            assert (row["state"], row["round"]) == ("failed", 1)
            assert "cannot go back to 'spawn'" in orjson.loads(row["error"])["message"]

    run(scenario())


def test_a_transactional_steps_writes_and_its_record_are_one(database_url: str) -> None:
    async def one(op: Operation, tx: Any) -> None:
        await tx.execute("INSERT INTO operation_events (key, payload, created_at) VALUES ('mine', '1', 1e12)")
        if script.count("one") == 1:
            raise ConnectionError("the process dies here, nearly")

    script = Script(one=one)

    async def scenario() -> None:
        async with opened(database_url) as db, working(db, script):
            assert (await finished(db, await start(db, Three)))["state"] == "failed"
            assert await db.fetch_value("SELECT COUNT(*) AS n FROM operation_events") == 0
            assert (await finished(db, await start(db, Three)))["state"] == "done"
            assert await db.fetch_value("SELECT COUNT(*) AS n FROM operation_events") == 1

    run(scenario())
