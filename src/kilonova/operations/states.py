"""The states of an operation and what may follow each; everything that moves one asks this table."""

from __future__ import annotations

QUEUED = "queued"
RUNNING = "running"
WAITING = "waiting"
UNDOING = "undoing"
DONE = "done"
FAILED = "failed"
CANCELLED = "cancelled"

FINISHED = frozenset({DONE, FAILED, CANCELLED})

TRANSITIONS: dict[str, dict[str, str]] = {
    QUEUED: {RUNNING: "a worker leases it"},
    RUNNING: {
        WAITING: "it comes to a wait",
        QUEUED: "a step is to be tried again later, or the worker stops",
        UNDOING: "a step fails or goes back, or somebody cancels",
        DONE: "the last step is recorded",
    },
    WAITING: {
        QUEUED: "the event is posted, or somebody cancels",
        RUNNING: "a worker leases it to poll, or at the deadline",
    },
    UNDOING: {
        RUNNING: "all is undone down to the step it goes back to",
        FAILED: "all is undone",
        CANCELLED: "all is undone after a cancel",
    },
    DONE: {},
    FAILED: {},
    CANCELLED: {},
}


class WrongState(Exception):
    """The engine tried a move that the table does not have."""


def check(before: str, after: str) -> None:
    if before != after and after not in TRANSITIONS[before]:
        raise WrongState(f"{before} -> {after}")


def draw() -> str:
    """The table as a mermaid diagram, for the documentation."""
    lines = ["stateDiagram-v2", f"    [*] --> {QUEUED}: begin"]
    for before, following in TRANSITIONS.items():
        lines += [f"    {before} --> {after}: {why}" for after, why in following.items()]
        if not following:
            lines.append(f"    {before} --> [*]")
    return "\n".join(lines)
