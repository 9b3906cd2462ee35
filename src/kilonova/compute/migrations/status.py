"""The status of a migration: a word for what its operation is doing, or for what became of it.

Everything here takes a row of READ: the move, and what tells of its operation.
"""

from __future__ import annotations

from dataclasses import dataclass

import orjson

from kilonova.compute.migrations.model import (
    CLEANED,
    CONFIRMED,
    EVACUATION,
    LIVE,
    MIGRATION,
    RESIZE,
    REVERTED,
)
from kilonova.operations.states import CANCELLED, DONE, FAILED, UNDOING
from kilonova.store import Row

CHANGED_AT = "(CASE WHEN o.updated_at > m.updated_at THEN o.updated_at ELSE m.updated_at END)"
# `ending` is the operation that confirms or reverts.
READ = f"""
SELECT m.*, o.state, o.step, o.undo_to, o.error, {CHANGED_AT} AS changed_at,
    (SELECT e.kind FROM operations e WHERE e.server_id = m.server_id AND e.finished_at IS NULL
        AND e.kind IN ('confirm_resize', 'revert_resize') ORDER BY e.seq LIMIT 1) AS ending
FROM moves m JOIN operations o ON o.id = m.operation_id
"""


@dataclass(frozen=True)
class Words:
    """How the moves of a type are called: at each step, once done, by what was decided then, and failed."""

    steps: dict[str, str]
    done: str
    outcomes: dict[str, str]
    failed: str


_COLD = Words(
    steps={
        "choose host": "pre-migrating",
        "claim": "pre-migrating",
        "stop guest": "migrating",
        "park guest": "migrating",
        "move volumes": "post-migrating",
        "move ports": "post-migrating",
        "build guest": "post-migrating",
        "complete volumes": "post-migrating",
        "hand over": "post-migrating",
    },
    done="finished",
    outcomes={CONFIRMED: "confirmed", REVERTED: "reverted"},
    failed="error",
)

WORDS = {
    MIGRATION: _COLD,
    RESIZE: _COLD,
    LIVE: Words(
        steps={
            "choose host": "queued",
            "claim": "queued",
            "take turn": "queued",
            "standby volumes": "preparing",
            "prepare destination": "preparing",
            "bind ports": "preparing",
            "migrate guest": "running",
            "adopt volumes": "post-migrating",
            "move ports": "post-migrating",
            "hand over": "post-migrating",
        },
        done="completed",
        outcomes={},
        failed="failed",
    ),
    EVACUATION: Words(
        steps={
            "choose host": "accepted",
            "claim": "accepted",
            "move volumes": "pre-migrating",
            "move ports": "pre-migrating",
            "build guest": "pre-migrating",
            "complete volumes": "pre-migrating",
            "hand over": "pre-migrating",
        },
        done="done",
        outcomes={CLEANED: "completed"},
        failed="failed",
    ),
}
GIVEN_UP, UNDOING_ERROR = "cancelled", "error"
ENDING = {"confirm_resize": "confirming", "revert_resize": "reverting"}

# What a migration is called while it goes forward. Those of this kind are the ones that a server's list shows.
IN_PROGRESS = {type: frozenset(words.steps.values()) for type, words in WORDS.items()}


def status(row: Row) -> str:
    words, state = WORDS[row["type"]], row["state"]
    if state == DONE:
        return _decided(words, row)
    if state == FAILED:
        return words.failed
    if state == CANCELLED:
        return GIVEN_UP
    if state == UNDOING and row["undo_to"] is None and not was_cancelled(row):
        return UNDOING_ERROR
    # Also of one that goes back to try another host, or that was cancelled and is not undone yet.
    return words.steps.get(row["step"], next(iter(words.steps.values())))


def conditions(word: str) -> list[str]:
    """In SQL about READ: one of these is true of every migration with this status, and of few others."""
    found = []
    for type, words in WORDS.items():
        done = f"m.type = '{type}' AND o.state = '{DONE}'"
        if word == words.done or (words is _COLD and word in ENDING.values()):
            found.append(f"({done} AND m.outcome IS NULL)")
        found += [f"({done} AND m.outcome = '{outcome}')" for outcome, said in words.outcomes.items() if word == said]
        if word == words.failed:
            found.append(f"(m.type = '{type}' AND o.state = '{FAILED}')")
    if word == GIVEN_UP:
        found.append(f"o.state = '{CANCELLED}'")
    if word == UNDOING_ERROR or any(word in words for words in IN_PROGRESS.values()):
        found.append("m.operation_id IN (SELECT id FROM operations WHERE finished_at IS NULL)")
    return found


def in_progress(row: Row) -> bool:
    return status(row) in IN_PROGRESS[row["type"]]


def was_cancelled(row: Row) -> bool:
    """Whether its operation turned back because somebody wanted it to."""
    return row["error"] is not None and orjson.loads(row["error"])["type"] == "Cancelled"


def reason(row: Row) -> str | None:
    """Why it failed or is about to, in words for everybody. What makes it go to another host is no failure."""
    if row["error"] is None or row["undo_to"] is not None:
        return None
    message: str = orjson.loads(row["error"])["message"]
    return message


def _decided(words: Words, row: Row) -> str:
    if row["outcome"] is not None:
        return words.outcomes[row["outcome"]]
    if words is _COLD and row["ending"] is not None:
        return ENDING[row["ending"]]
    return words.done
