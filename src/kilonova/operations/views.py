"""What others see of operations: task states, instance actions with their events, and what stands still."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from kilonova import clock
from kilonova.operations import table
from kilonova.operations.running import FORWARD
from kilonova.operations.states import DONE, FINISHED, UNDOING, WAITING
from kilonova.store import Reader, Row

STUCK_ATTEMPTS = 5
STUCK_SECONDS = 60.0

_FIRST_OF_SERVER = """NOT EXISTS (SELECT 1 FROM operations earlier
    WHERE earlier.server_id = o.server_id AND earlier.finished_at IS NULL AND earlier.seq < o.seq)"""


@dataclass(frozen=True, slots=True)
class RunningOp:
    """The operation that a server's task state comes from."""

    id: str
    kind: str
    action: str
    state: str
    step: str
    task_state: str | None
    progress: int
    cancelled: bool
    request_id: str | None


async def running_of(reader: Reader, server_ids: Sequence[str]) -> dict[str, RunningOp]:
    """Per server the operation it is busy with: the oldest that is not being cancelled, else the newest.

    Those that go beside others make nobody busy.
    """
    rows = await reader.fetch(
        "SELECT id, kind, action, server_id, state, step, plan, progress, cancel_requested, request_id"
        " FROM operations WHERE server_id = ANY($1) AND finished_at IS NULL ORDER BY seq",
        server_ids,
    )
    found: dict[str, RunningOp] = {}
    for row in rows:
        kind = table.find(row["kind"])
        if kind is not None and kind.beside:
            continue
        known = found.get(row["server_id"])
        if known is None or known.cancelled:
            found[row["server_id"]] = _running(row)
    return found


async def is_past(reader: Reader, operation_id: str, step: str) -> bool:
    """Whether the operation has done the step, or will never do it."""
    row = await reader.fetch_one("SELECT step, finished_at FROM operations WHERE id = $1", operation_id)
    return row is None or row["step"] != step or row["finished_at"] is not None


def _running(row: Row) -> RunningOp:
    kind = table.find(row["kind"])
    step = kind.table().find(row["step"]) if kind else None
    return RunningOp(
        id=row["id"],
        kind=row["kind"],
        action=row["action"],
        state=row["state"],
        step=row["step"],
        task_state=(step.task_state if step else None) or (kind.task_state if kind else None),
        progress=_progress(row),
        cancelled=row["cancel_requested"],
        request_id=row["request_id"],
    )


def _progress(row: Row) -> int:
    """What the operation reported, else how far down its plan it is."""
    if row["progress"] is not None:
        return int(row["progress"])
    plan = orjson.loads(row["plan"])
    return 100 * plan.index(row["step"]) // len(plan) if row["step"] in plan else 0


# Instance actions


@dataclass(frozen=True, slots=True)
class Event:
    """`details` is for users, `traceback` for administrators."""

    event: str
    start_time: float
    finish_time: float | None
    result: str | None
    host: str | None
    details: str | None
    traceback: str | None


@dataclass(frozen=True, slots=True)
class Action:
    operation_id: str
    action: str
    server_id: str
    request_id: str | None
    user_id: str | None
    project_id: str | None
    start_time: float
    updated_at: float
    finish_time: float | None
    message: str | None
    events: tuple[Event, ...] = ()


class UnknownMarker(LookupError):
    """No action of the server has that request id."""


async def actions_of(
    reader: Reader,
    server_id: str,
    *,
    limit: int | None = None,
    marker: str | None = None,
    changes_since: float | None = None,
    changes_before: float | None = None,
) -> list[Action]:
    """The actions of a server, newest first, after the one whose request id is `marker`."""
    last: int | None = None
    if marker is not None:
        sql = "SELECT MIN(seq) AS seq FROM operations WHERE server_id = $1 AND request_id = $2 AND action <> ''"
        if (last := await reader.fetch_value(sql, server_id, marker)) is None:
            raise UnknownMarker(marker)
    conditions, arguments = ["server_id = $1", "action <> ''"], list[Any]([server_id])
    for condition, value in (("seq <", last), ("updated_at >=", changes_since), ("updated_at <=", changes_before)):
        if value is not None:
            arguments.append(value)
            conditions.append(f"{condition} ${len(arguments)}")
    sql = f"SELECT * FROM operations WHERE {' AND '.join(conditions)} ORDER BY seq DESC"
    if limit is not None:
        arguments.append(limit)
        sql += f" LIMIT ${len(arguments)}"
    return [_action(row) for row in await reader.fetch(sql, *arguments)]


async def action_of(reader: Reader, server_id: str, request_id: str) -> Action | None:
    """One action with its events in the order they ended; the step under way comes last and has no result."""
    row = await reader.fetch_one(
        "SELECT * FROM operations WHERE server_id = $1 AND request_id = $2 AND action <> '' ORDER BY seq LIMIT 1",
        server_id,
        request_id,
    )
    if row is None:
        return None
    steps = await reader.fetch(
        "SELECT * FROM operation_steps WHERE operation_id = $1 ORDER BY finished_at, started_at", row["id"]
    )
    events = [_event(step) for step in steps]
    if row["state"] not in FINISHED and row["step_started_at"] is not None:
        name = _name(row["step"], UNDOING if row["state"] == UNDOING else FORWARD)
        trouble = orjson.loads(row["trouble"]) if row["trouble"] else {}
        details, fault = trouble.get("message"), _fault(trouble.get("fault"))
        events.append(Event(name, row["step_started_at"], None, None, row["host"], details, fault))
    return _action(row, events)


def _action(row: Row, events: Iterable[Event] = ()) -> Action:
    return Action(
        operation_id=row["id"],
        action=row["action"],
        server_id=row["server_id"],
        request_id=row["request_id"],
        user_id=row["user_id"],
        project_id=row["project_id"],
        start_time=row["created_at"],
        updated_at=row["updated_at"],
        finish_time=row["finished_at"],
        message="Error" if row["error"] else None,
        events=tuple(events),
    )


def _event(step: Row) -> Event:
    error: dict[str, Any] = orjson.loads(step["error"]) if step["error"] else {}
    return Event(
        event=_name(step["name"], step["phase"]),
        start_time=step["started_at"],
        finish_time=step["finished_at"],
        result="Success" if step["outcome"] == DONE else "Error",
        host=step["host"],
        details=error.get("message"),
        traceback=error.get("internal") or _fault(error.get("fault")),
    )


def _fault(fault: Any) -> str | None:
    """What a failure that was foreseen keeps for administrators."""
    return fault if isinstance(fault, str) else None


def _name(step: str, phase: str) -> str:
    return step if phase == FORWARD else f"undo {step}"


# For operators


@dataclass(frozen=True, slots=True)
class Summary:
    id: str
    kind: str
    server_id: str | None
    host: str | None
    state: str
    step: str
    round: int
    attempt: int
    created_at: float
    finished_at: float | None
    worker: str | None
    reason: str | None


async def summaries(reader: Reader, server_id: str | None = None, limit: int = 100) -> list[Summary]:
    """Unfinished operations, oldest first; of one server also the finished ones, newest first."""
    if server_id is None:
        sql = "SELECT * FROM operations WHERE finished_at IS NULL ORDER BY seq LIMIT $1"
        rows = await reader.fetch(sql, limit)
    else:
        sql = "SELECT * FROM operations WHERE server_id = $1 ORDER BY seq DESC LIMIT $2"
        rows = await reader.fetch(sql, server_id, limit)
    return [_summary(row) for row in rows]


async def stuck(reader: Reader) -> list[Summary]:
    """Operations that need a look: of an unknown kind or step, failing again and again, or taken by nobody."""
    overdue = clock.now() - STUCK_SECONDS
    rows = await reader.fetch(
        "SELECT * FROM operations o WHERE finished_at IS NULL AND ("
        " (trouble IS NOT NULL AND (attempt = 0 OR attempt >= $1)) OR (run_at < $2 AND lease_until < $2 AND "
        + _FIRST_OF_SERVER
        + ")) ORDER BY seq",
        STUCK_ATTEMPTS,
        overdue,
    )
    return [_summary(row, "No worker has taken it") for row in rows]


def _summary(row: Row, otherwise: str | None = None) -> Summary:
    trouble = row["trouble"] or row["error"]
    return Summary(
        id=row["id"],
        kind=row["kind"],
        server_id=row["server_id"],
        host=row["host"],
        state=row["state"],
        step=_name(row["step"], UNDOING if row["state"] == UNDOING else FORWARD),
        round=row["round"],
        attempt=row["attempt"],
        created_at=row["created_at"],
        finished_at=row["finished_at"],
        worker=row["lease_owner"],
        reason=_reason(orjson.loads(trouble)) if trouble else otherwise,
    )


def _reason(error: dict[str, Any]) -> str:
    """Operators read what was kept for them, where it is one line."""
    fault = _fault(error.get("fault"))
    return fault if fault and "\n" not in fault else str(error["message"])


async def counts(reader: Reader) -> dict[tuple[str, str], int]:
    """Unfinished operations by kind and state."""
    rows = await reader.fetch(
        "SELECT kind, state, COUNT(*) AS number FROM operations WHERE finished_at IS NULL GROUP BY kind, state"
    )
    return {(row["kind"], row["state"]): row["number"] for row in rows}


async def queue_age(reader: Reader) -> float:
    """For how many seconds the oldest operation that could run has waited for a worker."""
    now = clock.now()
    oldest = await reader.fetch_value(
        "SELECT MIN(run_at) AS oldest FROM operations o WHERE finished_at IS NULL AND run_at <= $1"
        f" AND lease_until <= $1 AND state <> '{WAITING}' AND " + _FIRST_OF_SERVER,
        now,
    )
    return 0.0 if oldest is None else float(now - oldest)
