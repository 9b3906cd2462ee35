"""What the rest of the program asks of the engine, always in a transaction of its own making."""

from __future__ import annotations

from typing import Any

import orjson

from kilonova import clock, ids
from kilonova.operations.table import Operation
from kilonova.store import Transaction

WORK = "operations"
"""Woken when an operation has become runnable; for lanes see `channel`."""
CANCELS = "operation_cancels"
"""Woken when somebody wants one cancelled."""

_INSERT = """
INSERT INTO operations (
    id, kind, action, server_id, project_id, user_id, request_id, host, params, plan, results, note, state, step,
    round, attempt, cancel_requested, lease_until, epoch, run_at, created_at, updated_at, round_started_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, '{}', $11, 'queued', $12, 1, 0, FALSE, 0, 0, $13, $13, $13, $13)
"""

_NOTE = """
INSERT INTO operations (
    id, kind, action, server_id, project_id, user_id, request_id, host, params, plan, results, note, state, step,
    round, attempt, cancel_requested, lease_until, epoch, run_at, created_at, updated_at, round_started_at, finished_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, '{}', $9, '{}', '{}', 'done', $2, 1, 0, FALSE, 0, 0, $10, $10, $10, $10, $10)
"""
_NOTED = """
INSERT INTO operation_steps (operation_id, round, phase, name, outcome, error, host, started_at, finished_at)
VALUES ($1, 1, 'forward', $2, 'done', $3, $4, $5, $5)
"""

_CANCEL = """
UPDATE operations SET cancel_requested = TRUE, updated_at = $2,
    run_at = CASE WHEN state IN ('queued', 'waiting', 'undoing') THEN $2 ELSE run_at END,
    state = CASE state WHEN 'waiting' THEN 'queued' ELSE state END
WHERE id = $1 AND finished_at IS NULL AND NOT cancel_requested
"""


def channel(lane: str) -> str:
    """Woken when there is a new operation in the lane."""
    return f"{WORK}_{lane}" if lane else WORK


async def begin(
    tx: Transaction,
    operation: type[Operation],
    *,
    params: dict[str, Any] | None = None,
    server_id: str | None = None,
    project_id: str | None = None,
    user_id: str | None = None,
    request_id: str | None = None,
    host: str | None = None,
    note: dict[str, Any] | None = None,
    operation_id: str | None = None,
    without: frozenset[str] = frozenset(),
) -> str:
    """Write the operation's row; once the transaction is committed it will be carried out or undone. Returns its id.

    Steps that would have nothing to do can be left out of its plan.
    """
    if server_id is not None:
        # Numbers become visible in their order, else a later operation of the server could overtake.
        await tx.hold(f"operations of {server_id}")
    plan, first = operation.table().without(without)
    chosen = operation_id or ids.new_id()
    await tx.execute(
        _INSERT,
        chosen,
        operation.kind,
        operation.action,
        server_id,
        project_id,
        user_id,
        request_id,
        host,
        orjson.dumps(params or {}).decode(),
        plan,
        orjson.dumps(note or {}).decode(),
        first,
        clock.now(),
    )
    tx.wake(channel(operation.lane))
    return chosen


async def note(
    tx: Transaction,
    *,
    action: str,
    words: str,
    server_id: str,
    project_id: str | None,
    user_id: str | None,
    request_id: str,
    host: str | None,
) -> None:
    """Write down what happened to a server by itself: an operation that nobody has to carry out any more."""
    identity, now = ids.new_id(), clock.now()
    name = "notice"
    await tx.execute(
        _NOTE, identity, name, action, server_id, project_id, user_id, request_id, host, f'["{name}"]', now
    )
    reason = orjson.dumps({"message": words}).decode()
    await tx.execute(_NOTED, identity, name, reason, host, now)


async def request_cancel(tx: Transaction, operation_id: str) -> bool:
    """Ask for an end: it stops what it does, undoes and becomes cancelled. False if it has ended or was asked before.

    An operation that is recording its last step, or undoing because it failed, ends as it would have.
    """
    changed = await tx.execute(_CANCEL, operation_id, clock.now())
    if changed:
        tx.wake(WORK)
        tx.wake(CANCELS)
    return bool(changed)


async def try_again(tx: Transaction, operation_id: str) -> bool:
    """Do not wait for the end of a pause. False if it has ended, runs already or has a wait to wait for."""
    changed = await tx.execute(
        "UPDATE operations SET run_at = $2 WHERE id = $1 AND finished_at IS NULL AND state <> 'waiting'"
        " AND run_at > $2 AND lease_until <= $2",
        operation_id,
        clock.now(),
    )
    if changed:
        tx.wake(WORK)
    return bool(changed)
