"""The states of an operation and their allowed transitions."""

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
        WAITING: "it reaches a wait",
        QUEUED: "a step is retried later, or the worker stops",
        UNDOING: "a step fails or goes back, or the operation is cancelled",
        DONE: "the last step is recorded",
    },
    WAITING: {
        QUEUED: "the event is posted, or the operation is cancelled",
        RUNNING: "a worker leases it to poll, or at the deadline",
    },
    UNDOING: {
        RUNNING: "the steps are undone down to the one it goes back to",
        FAILED: "all steps are undone",
        CANCELLED: "all steps are undone after a cancel",
    },
    DONE: {},
    FAILED: {},
    CANCELLED: {},
}


class InvalidTransition(Exception):
    """The engine attempted a transition that TRANSITIONS does not have."""


def check_transition(before: str, after: str) -> None:
    if before != after and after not in TRANSITIONS[before]:
        raise InvalidTransition(f"{before} -> {after}")


def draw_diagram() -> str:
    """The transitions as a mermaid diagram, for the documentation."""
    lines = ["stateDiagram-v2", f"    [*] --> {QUEUED}: begin"]
    for before, following in TRANSITIONS.items():
        lines += [f"    {before} --> {after}: {why}" for after, why in following.items()]
        if not following:
            lines.append(f"    {before} --> [*]")
    return "\n".join(lines)
