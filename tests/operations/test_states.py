"""The table of states: what really happens is what it says, and the note shows it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kilonova.operations import Failed, GoBack, Operation, Passing, post_event, request_cancel, running, states
from tests.operations.support import Script, Three, Waiting, finished, start, until, working
from tests.operations.test_waits import Polled
from tests.support import run
from tests.support.databases import opened

NOTE = Path(__file__).parents[2] / "docs" / "decisions" / "0001-durable-engine.md"

TRIGGER = """
CREATE TRIGGER moves AFTER UPDATE OF state ON operations WHEN old.state <> new.state BEGIN
    INSERT INTO operation_events (key, payload, created_at) VALUES (old.state, new.state, 1e12); END
"""


def test_the_note_shows_the_table() -> None:
    assert f"```mermaid\n{states.draw()}\n```" in NOTE.read_text()


def test_every_state_has_its_row() -> None:
    for before, following in states.TRANSITIONS.items():
        assert before not in following
        assert set(following) <= set(states.TRANSITIONS)
        assert bool(following) == (before not in states.FINISHED)


def test_a_move_that_is_not_in_the_table_is_refused() -> None:
    states.check("running", "running")
    with pytest.raises(states.WrongState):
        states.check("done", "running")


def test_the_engine_makes_exactly_the_moves_of_the_table(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "IN_MEMORY", 0.0)

    async def two(op: Operation) -> None:
        match op.params:
            case {"do": "pause"} if script.count("two") == 1:
                raise Passing("away")
            case {"do": "fail"}:
                raise Failed("no")
            case {"do": "back"} if op.round == 1:
                raise GoBack("one", reason="again")

    async def poll(op: Operation) -> Any:
        """Finds nothing until it was waited for: a wait that begins late is polled at once."""
        return await op.db.fetch_value(
            "SELECT key FROM operation_events WHERE key = 'waiting' AND payload = 'running' LIMIT 1"
        )

    script = Script(two=two, poll=poll)

    async def scenario() -> set[tuple[Any, Any]]:
        async with opened(sqlite_url) as db:
            async with db.transaction() as tx:
                await tx.execute(TRIGGER)
            async with working(db, script):
                for what in ("pause", "fail", "back"):
                    await finished(db, await start(db, Three, params={"do": what}))
                for end in (post_event, request_cancel):
                    identity = await start(db, Waiting, server_id="s")
                    await until(db, identity, lambda row: row["state"] == "waiting")
                    async with db.transaction() as tx:
                        await end(tx, "answer:s" if end is post_event else identity)
                    await finished(db, identity)
                await finished(db, await start(db, Polled))
            rows = await db.fetch("SELECT key, payload FROM operation_events WHERE created_at = 1e12")
            return {(row["key"], row["payload"]) for row in rows}

    declared = {(before, after) for before, following in states.TRANSITIONS.items() for after in following}
    assert run(scenario()) == declared
