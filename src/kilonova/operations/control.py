"""Begins, cancels and retries operations, in a transaction of the caller."""

from __future__ import annotations

from typing import TypeVar

from msgspec import json

from kilonova import clock, ids
from kilonova.operations.definition import Operation
from kilonova.operations.row import StoredError
from kilonova.store import Transaction

P = TypeVar("P")

WORK_CHANNEL = "operations"
"""Notified when an operation has become runnable; for lanes see `lane_channel`."""
CANCEL_CHANNEL = "operation_cancels"
"""Notified when a cancellation is requested."""

_INSERT = """
INSERT INTO operations (
    id, kind, action, server_id, guest_id, project_id, user_id, request_id, host, params, plan, results, note, state,
    step, round, attempt, cancel_requested, lease_until, epoch, run_at, created_at, updated_at, round_started_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, '{}', $12, 'queued', $13, 1, 0, FALSE, 0, 0, $14, $14, $14, $14)
"""

_INSERT_NOTICE = """
INSERT INTO operations (
    id, kind, action, server_id, project_id, user_id, request_id, host, params, plan, results, note, state, step,
    round, attempt, cancel_requested, lease_until, epoch, run_at, created_at, updated_at, round_started_at, finished_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, '{}', $9, '{}', '{}', 'done', $2, 1, 0, FALSE, 0, 0, $10, $10, $10, $10, $10)
"""
_INSERT_NOTICE_STEP = """
INSERT INTO operation_steps (operation_id, round, phase, name, outcome, error, host, started_at, finished_at)
VALUES ($1, 1, 'forward', $2, 'done', $3, $4, $5, $5)
"""

_CANCEL = """
UPDATE operations SET cancel_requested = TRUE, updated_at = $2,
    run_at = CASE WHEN state IN ('queued', 'waiting', 'undoing') THEN $2 ELSE run_at END,
    state = CASE state WHEN 'waiting' THEN 'queued' ELSE state END
WHERE id = $1 AND finished_at IS NULL AND NOT cancel_requested
"""


def lane_channel(lane: str) -> str:
    """The channel that is notified of new operations in the lane."""
    return f"{WORK_CHANNEL}_{lane}" if lane else WORK_CHANNEL


async def begin(
    tx: Transaction,
    operation: type[Operation[P]],
    *,
    params: P | None = None,
    server_id: str | None = None,
    guest_id: str | None = None,
    project_id: str | None = None,
    user_id: str | None = None,
    request_id: str | None = None,
    host: str | None = None,
    note: dict[str, object] | None = None,
    operation_id: str | None = None,
    without: frozenset[str] = frozenset(),
) -> str:
    """Write the operation's row. After the commit, a worker runs it. Returns its id.

    `without` names steps that have nothing to do, and are left out of the plan.
    """
    if server_id is not None:
        # Sequence numbers must become visible in order, because operations of a server run in this order.
        await tx.lock(f"operations of {server_id}")
    plan, first = operation.table().without(without)
    new_id = operation_id or ids.new_id()
    await tx.execute(
        _INSERT,
        new_id,
        operation.kind,
        operation.action,
        server_id,
        guest_id,
        project_id,
        user_id,
        request_id,
        host,
        _params_text(operation, params),
        plan,
        json.encode(note or {}).decode(),
        first,
        clock.now(),
    )
    tx.notify(lane_channel(operation.lane))
    return new_id


def _params_text(operation: type[Operation[P]], params: P | None) -> str:
    given = operation.params_type() if params is None else params
    if type(given) is not operation.params_type:
        raise TypeError(f"{operation.kind} has the parameters {operation.params_type.__name__}")
    return json.encode(given).decode()


async def record_notice(
    tx: Transaction,
    *,
    action: str,
    message: str,
    server_id: str,
    project_id: str | None,
    user_id: str | None,
    request_id: str,
    host: str | None,
) -> None:
    """Record an event of a server that no request caused, as a finished operation."""
    notice_id, now = ids.new_id(), clock.now()
    name = "notice"
    await tx.execute(
        _INSERT_NOTICE, notice_id, name, action, server_id, project_id, user_id, request_id, host, f'["{name}"]', now
    )
    await tx.execute(_INSERT_NOTICE_STEP, notice_id, name, StoredError(message=message).encode(), host, now)


async def request_cancel(tx: Transaction, operation_id: str) -> bool:
    """Cancel an operation: it is interrupted and undone. False if it has ended, or was cancelled before.

    The request has no effect on an operation that is recording its last step, or is being undone after a failure.
    """
    changed = await tx.execute(_CANCEL, operation_id, clock.now())
    if changed:
        tx.notify(WORK_CHANNEL)
        tx.notify(CANCEL_CHANNEL)
    return bool(changed)


async def retry_now(tx: Transaction, operation_id: str) -> bool:
    """Retry an operation without waiting for its delay. False if it has ended, is running, or waits for an event."""
    changed = await tx.execute(
        "UPDATE operations SET run_at = $2 WHERE id = $1 AND finished_at IS NULL AND state <> 'waiting'"
        " AND run_at > $2 AND lease_until <= $2",
        operation_id,
        clock.now(),
    )
    if changed:
        tx.notify(WORK_CHANNEL)
    return bool(changed)
