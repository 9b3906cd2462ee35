"""The transitions of operations: the engine makes exactly these, and the decision record shows them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kilonova.operations import Failed, GoBack, Operation, TransientError, execution, post_event, request_cancel, states
from tests.operations.support import (
    ScriptedServices,
    ScriptParams,
    ThreeSteps,
    WaitingOperation,
    begin_operation,
    running_worker,
    wait_until,
    wait_until_finished,
)
from tests.operations.test_execution_waits import PolledWait
from tests.support import run
from tests.support.databases import opened

DECISION = Path(__file__).parents[2] / "docs" / "decisions" / "0001-durable-engine.md"

TRIGGER = """
CREATE TRIGGER moves AFTER UPDATE OF state ON operations WHEN old.state <> new.state BEGIN
    INSERT INTO operation_events (key, payload, created_at) VALUES (old.state, new.state, 1e12); END
"""


def test_decision_record_shows_transitions() -> None:
    assert f"```mermaid\n{states.draw_diagram()}\n```" in DECISION.read_text()


def test_transitions_are_complete() -> None:
    for before, following in states.TRANSITIONS.items():
        assert before not in following
        assert set(following) <= set(states.TRANSITIONS)
        assert bool(following) == (before not in states.FINISHED)


def test_undeclared_transition_is_refused() -> None:
    states.check_transition("running", "running")
    with pytest.raises(states.InvalidTransition):
        states.check_transition("done", "running")


def test_engine_makes_all_transitions_and_no_others(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "MAX_SLEEP_SECONDS", 0.0)

    async def two(op: Operation) -> None:
        match op.params.do:
            case "pause" if script.count("two") == 1:
                raise TransientError("away")
            case "fail":
                raise Failed("no")
            case "back" if op.round == 1:
                raise GoBack("one", reason="again")

    async def poll(op: Operation) -> Any:
        """Finds nothing before the operation has waited."""
        return await op.db.fetch_value(
            "SELECT key FROM operation_events WHERE key = 'waiting' AND payload = 'running' LIMIT 1"
        )

    script = ScriptedServices(two=two, poll=poll)

    async def scenario() -> set[tuple[Any, Any]]:
        async with opened(sqlite_url) as db:
            async with db.transaction() as tx:
                await tx.execute(TRIGGER)
            async with running_worker(db, script):
                for what in ("pause", "fail", "back"):
                    await wait_until_finished(db, await begin_operation(db, ThreeSteps, params=ScriptParams(do=what)))
                for end in (post_event, request_cancel):
                    operation_id = await begin_operation(db, WaitingOperation, server_id="s")
                    await wait_until(db, operation_id, lambda row: row["state"] == "waiting")
                    async with db.transaction() as tx:
                        await end(tx, "answer:s" if end is post_event else operation_id)
                    await wait_until_finished(db, operation_id)
                await wait_until_finished(db, await begin_operation(db, PolledWait))
            rows = await db.fetch("SELECT key, payload FROM operation_events WHERE created_at = 1e12")
            return {(row["key"], row["payload"]) for row in rows}

    declared = {(before, after) for before, following in states.TRANSITIONS.items() for after in following}
    assert run(scenario()) == declared
