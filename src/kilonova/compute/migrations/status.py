"""The status of a migration, derived from its operation."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec import Struct

from kilonova.compute import operation_kinds as kinds
from kilonova.compute.migrations.model import (
    CLEANED,
    CONFIRMED,
    EVACUATION,
    LIVE,
    MIGRATION,
    RESIZE,
    REVERTED,
    Migration,
)
from kilonova.operations.row import StoredError, decode_error
from kilonova.operations.states import CANCELLED, DONE, FAILED, UNDOING
from kilonova.store import Row

CHANGED_AT = "(CASE WHEN o.updated_at > m.updated_at THEN o.updated_at ELSE m.updated_at END)"
SELECT = f"""
SELECT m.*, o.state, o.step, o.undo_to, o.error, {CHANGED_AT} AS changed_at,
    (SELECT e.kind FROM operations e WHERE e.server_id = m.server_id AND e.finished_at IS NULL
        AND e.kind IN ('{kinds.CONFIRM_RESIZE}', '{kinds.REVERT_RESIZE}') ORDER BY e.seq LIMIT 1) AS ending
FROM moves m JOIN operations o ON o.id = m.operation_id
"""


class ShownMigration(Struct, frozen=True):
    """A migration, the state of its operation, and details that `queries.add_details` adds.

    `ending` is the kind of the unfinished operation that confirms or reverts.
    """

    migration: Migration
    state: str
    step: str
    undo_to: str | None
    error: StoredError | None
    changed_at: float
    ending: str | None
    dest_address: str | None = None
    old_flavor_number: int | None = None
    new_flavor_number: int | None = None
    shows_hosts: bool = True


def decode(row: Row) -> ShownMigration:
    """The migration of a row of SELECT."""
    return ShownMigration(
        migration=Migration.decode(row),
        state=row["state"],
        step=row["step"],
        undo_to=row["undo_to"],
        error=None if row["error"] is None else decode_error(row["error"]),
        changed_at=row["changed_at"],
        ending=row["ending"],
    )


@dataclass(frozen=True)
class StatusNames:
    """The statuses of a type of move: at each step, when done, by outcome, and when failed."""

    steps: dict[str, str]
    done: str
    outcomes: dict[str, str]
    failed: str


_COLD = StatusNames(
    steps={
        "choose host": "pre-migrating",
        "claim": "pre-migrating",
        "stop guest": "migrating",
        "park guest": "migrating",
        "move volumes": "post-migrating",
        "move ports": "post-migrating",
        "build guest": "post-migrating",
        "wait for ports": "post-migrating",
        "complete volumes": "post-migrating",
        "hand over": "post-migrating",
    },
    done="finished",
    outcomes={CONFIRMED: "confirmed", REVERTED: "reverted"},
    failed="error",
)

STATUS_NAMES = {
    MIGRATION: _COLD,
    RESIZE: _COLD,
    LIVE: StatusNames(
        steps={
            "choose host": "queued",
            "claim": "queued",
            "wait for slot": "queued",
            "standby volumes": "preparing",
            "prepare destination": "preparing",
            "bind ports": "preparing",
            "migrate guest": "running",
            "adopt volumes": "post-migrating",
            "move ports": "post-migrating",
            "wait for ports": "post-migrating",
            "hand over": "post-migrating",
        },
        done="completed",
        outcomes={},
        failed="failed",
    ),
    EVACUATION: StatusNames(
        steps={
            "choose host": "accepted",
            "claim": "accepted",
            "move volumes": "pre-migrating",
            "move ports": "pre-migrating",
            "build guest": "pre-migrating",
            "wait for ports": "pre-migrating",
            "complete volumes": "pre-migrating",
            "hand over": "pre-migrating",
        },
        done="done",
        outcomes={CLEANED: "completed"},
        failed="failed",
    ),
}
CANCELLED_STATUS, UNDOING_ERROR = "cancelled", "error"
ENDING = {kinds.CONFIRM_RESIZE: "confirming", kinds.REVERT_RESIZE: "reverting"}

# Statuses of running migrations. A server's list of migrations only shows these.
IN_PROGRESS = {type: frozenset(names.steps.values()) for type, names in STATUS_NAMES.items()}


def status(move: ShownMigration) -> str:
    names = STATUS_NAMES[move.migration.type]
    if move.state == DONE:
        return _done_status(names, move)
    if move.state == FAILED:
        return names.failed
    if move.state == CANCELLED:
        return CANCELLED_STATUS
    if move.state == UNDOING and move.undo_to is None and not was_cancelled(move):
        return UNDOING_ERROR
    # Also while it is undone to try another host, or after a cancel that is not undone yet.
    return names.steps.get(move.step, next(iter(names.steps.values())))


def conditions(wanted: str) -> list[str]:
    """SQL conditions on SELECT. At least one is true for every migration with this status, and for few others."""
    found = []
    for type, names in STATUS_NAMES.items():
        done = f"m.type = '{type}' AND o.state = '{DONE}'"
        if wanted == names.done or (names is _COLD and wanted in ENDING.values()):
            found.append(f"({done} AND m.outcome IS NULL)")
        found += [f"({done} AND m.outcome = '{outcome}')" for outcome, name in names.outcomes.items() if wanted == name]
        if wanted == names.failed:
            found.append(f"(m.type = '{type}' AND o.state = '{FAILED}')")
    if wanted == CANCELLED_STATUS:
        found.append(f"o.state = '{CANCELLED}'")
    if wanted == UNDOING_ERROR or any(wanted in names for names in IN_PROGRESS.values()):
        found.append("m.operation_id IN (SELECT id FROM operations WHERE finished_at IS NULL)")
    return found


def in_progress(move: ShownMigration) -> bool:
    return status(move) in IN_PROGRESS[move.migration.type]


def was_cancelled(move: ShownMigration) -> bool:
    """Whether its operation is undone because of a cancel."""
    return move.error is not None and move.error.type == "Cancelled"


def reason(move: ShownMigration) -> str | None:
    """The error of a failed or failing migration, for all users. A retry on another host is not a failure."""
    return None if move.error is None or move.undo_to is not None else move.error.message


def _done_status(names: StatusNames, move: ShownMigration) -> str:
    if move.migration.outcome is not None:
        return names.outcomes[move.migration.outcome]
    if names is _COLD and move.ending is not None:
        return ENDING[move.ending]
    return names.done
