"""Queries on operations: task states, instance actions and their events, and stuck operations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from msgspec import json

from kilonova import clock
from kilonova.operations import definition
from kilonova.operations.execution import FORWARD
from kilonova.operations.row import OperationRow, StoredError, decode_error
from kilonova.operations.states import DONE, FINISHED, UNDOING, WAITING
from kilonova.store import Reader
from kilonova.store.conditions import Conditions
from kilonova.store.records import Record

STUCK_ATTEMPTS = 5
STUCK_SECONDS = 60.0

_FIRST_OF_SERVER = """NOT EXISTS (SELECT 1 FROM operations earlier
    WHERE earlier.server_id = o.server_id AND earlier.finished_at IS NULL AND earlier.seq < o.seq)"""


@dataclass(frozen=True, slots=True)
class RunningOperation:
    """The operation that determines a server's task state."""

    id: str
    kind: str
    action: str
    state: str
    step: str
    task_state: str | None
    progress: int
    cancelled: bool
    request_id: str | None


class _Unfinished(Record, frozen=True):
    table: ClassVar[str] = "operations"

    id: str
    kind: str
    action: str
    server_id: str | None
    state: str
    step: str
    plan: str
    progress: int | None
    cancel_requested: bool
    request_id: str | None


async def find_running(reader: Reader, server_ids: Sequence[str]) -> dict[str, RunningOperation]:
    """The operation of each server that blocks requests: the oldest that is not being cancelled, else the newest."""
    rows = await reader.fetch(
        f"SELECT {', '.join(_Unfinished.__struct_fields__)}"
        " FROM operations WHERE server_id = ANY($1) AND finished_at IS NULL ORDER BY seq",
        server_ids,
    )
    found: dict[str, RunningOperation] = {}
    for operation in _Unfinished.decode_all(rows):
        kind = definition.find_kind(operation.kind)
        if kind is not None and not kind.blocks_requests:
            continue
        server_id = str(operation.server_id)
        known = found.get(server_id)
        if known is None or known.cancelled:
            found[server_id] = _running_operation(operation)
    return found


async def is_past(reader: Reader, operation_id: str, step: str) -> bool:
    """Whether the operation has passed the step, or has ended."""
    row = await reader.fetch_one("SELECT step, finished_at FROM operations WHERE id = $1", operation_id)
    return row is None or row["step"] != step or row["finished_at"] is not None


def _running_operation(operation: _Unfinished) -> RunningOperation:
    kind = definition.find_kind(operation.kind)
    step = kind.table().find(operation.step) if kind else None
    return RunningOperation(
        id=operation.id,
        kind=operation.kind,
        action=operation.action,
        state=operation.state,
        step=operation.step,
        task_state=(step.task_state if step else None) or (kind.task_state if kind else None),
        progress=_progress(operation),
        cancelled=operation.cancel_requested,
        request_id=operation.request_id,
    )


def _progress(operation: _Unfinished) -> int:
    """The reported progress, else the position in the plan, in percent."""
    if operation.progress is not None:
        return operation.progress
    plan = json.decode(operation.plan, type=list[str])
    return 100 * plan.index(operation.step) // len(plan) if operation.step in plan else 0


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
    """The server has no action with this request id."""


async def list_actions(
    reader: Reader,
    server_id: str,
    *,
    limit: int | None = None,
    marker: str | None = None,
    changes_since: float | None = None,
    changes_before: float | None = None,
) -> list[Action]:
    """The actions of a server, newest first, after the one with the request id `marker`."""
    last: int | None = None
    if marker is not None:
        sql = "SELECT MIN(seq) AS seq FROM operations WHERE server_id = $1 AND request_id = $2 AND action <> ''"
        if (last := await reader.fetch_value(sql, server_id, marker)) is None:
            raise UnknownMarker(marker)
    conditions = Conditions()
    conditions.add("server_id = ? AND action <> ''", server_id)
    for text, value in (("seq < ?", last), ("updated_at >= ?", changes_since), ("updated_at <= ?", changes_before)):
        if value is not None:
            conditions.add(text, value)
    sql = f"SELECT * FROM operations WHERE {conditions.where()} ORDER BY seq DESC"
    if limit is not None:
        conditions.arguments.append(limit)
        sql += f" LIMIT ${len(conditions.arguments)}"
    rows = await reader.fetch(sql, *conditions.arguments)
    return [_action(row) for row in OperationRow.decode_all(rows)]


async def find_action(reader: Reader, server_id: str, request_id: str) -> Action | None:
    """An action with its events in the order of their end. The current step is last and has no result."""
    found = await reader.fetch_one(
        "SELECT * FROM operations WHERE server_id = $1 AND request_id = $2 AND action <> '' ORDER BY seq LIMIT 1",
        server_id,
        request_id,
    )
    if found is None:
        return None
    row = OperationRow.decode(found)
    steps = await reader.fetch(
        "SELECT * FROM operation_steps WHERE operation_id = $1 ORDER BY finished_at, started_at", row.id
    )
    events = [_event(step) for step in _StepRow.decode_all(steps)]
    if row.state not in FINISHED and row.step_started_at is not None:
        name = _event_name(row.step, UNDOING if row.state == UNDOING else FORWARD)
        trouble = decode_error(row.trouble) if row.trouble else None
        details, fault = (trouble.message, trouble.fault_text) if trouble else (None, None)
        events.append(Event(name, row.step_started_at, None, None, row.host, details, fault))
    return _action(row, events)


def _action(row: OperationRow, events: Iterable[Event] = ()) -> Action:
    return Action(
        operation_id=row.id,
        action=row.action,
        server_id=str(row.server_id),
        request_id=row.request_id,
        user_id=row.user_id,
        project_id=row.project_id,
        start_time=row.created_at,
        updated_at=row.updated_at,
        finish_time=row.finished_at,
        message="Error" if row.error else None,
        events=tuple(events),
    )


class _StepRow(Record, frozen=True):
    table: ClassVar[str] = "operation_steps"

    phase: str
    name: str
    outcome: str
    error: str | None
    host: str | None
    started_at: float
    finished_at: float


def _event(step: _StepRow) -> Event:
    error = decode_error(step.error) if step.error else None
    return Event(
        event=_event_name(step.name, step.phase),
        start_time=step.started_at,
        finish_time=step.finished_at,
        result="Success" if step.outcome == DONE else "Error",
        host=step.host,
        details=error.message if error else None,
        traceback=(error.internal or error.fault_text) if error else None,
    )


def _event_name(step: str, phase: str) -> str:
    return step if phase == FORWARD else f"undo {step}"


# Operators' views


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


async def list_summaries(reader: Reader, server_id: str | None = None, limit: int = 100) -> list[Summary]:
    """Unfinished operations, oldest first; of one server also the finished ones, newest first."""
    if server_id is None:
        sql = "SELECT * FROM operations WHERE finished_at IS NULL ORDER BY seq LIMIT $1"
        rows = await reader.fetch(sql, limit)
    else:
        sql = "SELECT * FROM operations WHERE server_id = $1 ORDER BY seq DESC LIMIT $2"
        rows = await reader.fetch(sql, server_id, limit)
    return [_summary(row) for row in OperationRow.decode_all(rows)]


async def find_stuck(reader: Reader) -> list[Summary]:
    """Operations with an unknown kind or step, with repeated failures, or without a worker."""
    overdue = clock.now() - STUCK_SECONDS
    rows = await reader.fetch(
        "SELECT * FROM operations o WHERE finished_at IS NULL AND ("
        " (trouble IS NOT NULL AND (attempt = 0 OR attempt >= $1)) OR (run_at < $2 AND lease_until < $2 AND "
        + _FIRST_OF_SERVER
        + ")) ORDER BY seq",
        STUCK_ATTEMPTS,
        overdue,
    )
    return [_summary(row, "No worker has leased the operation") for row in OperationRow.decode_all(rows)]


def _summary(row: OperationRow, default_reason: str | None = None) -> Summary:
    trouble = row.trouble or row.error
    return Summary(
        id=row.id,
        kind=row.kind,
        server_id=row.server_id,
        host=row.host,
        state=row.state,
        step=_event_name(row.step, UNDOING if row.state == UNDOING else FORWARD),
        round=row.round,
        attempt=row.attempt,
        created_at=row.created_at,
        finished_at=row.finished_at,
        worker=row.lease_owner,
        reason=_reason(decode_error(trouble)) if trouble else default_reason,
    )


def _reason(error: StoredError) -> str:
    """The fault, which is for operators, if it is one line; else the message for users."""
    fault = error.fault_text
    return fault if fault and "\n" not in fault else error.message


async def count_unfinished(reader: Reader) -> dict[tuple[str, str], int]:
    """The number of unfinished operations by kind and state."""
    rows = await reader.fetch(
        "SELECT kind, state, COUNT(*) AS number FROM operations WHERE finished_at IS NULL GROUP BY kind, state"
    )
    return {(row["kind"], row["state"]): row["number"] for row in rows}


async def oldest_wait_seconds(reader: Reader) -> float:
    """How long the oldest runnable operation has waited for a worker."""
    now = clock.now()
    oldest = await reader.fetch_value(
        "SELECT MIN(run_at) AS oldest FROM operations o WHERE finished_at IS NULL AND run_at <= $1"
        f" AND lease_until <= $1 AND state <> '{WAITING}' AND " + _FIRST_OF_SERVER,
        now,
    )
    return 0.0 if oldest is None else float(now - oldest)
