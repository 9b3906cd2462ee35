"""The engine's SQL: leases of operations, and writes that require a valid lease."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

from msgspec.structs import replace

from kilonova import clock
from kilonova.operations import events, states
from kilonova.operations.control import WORK_CHANNEL
from kilonova.operations.errors import LostLease
from kilonova.operations.row import Changes, OperationRow, StoredError
from kilonova.store import Database, Transaction

if TYPE_CHECKING:
    from kilonova.operations.definition import Operation

# A lease is renewed after this fraction of its duration.
RENEWAL_FRACTION = 1 / 3

# `step_idle` is the time in which the operation was due but not leased. It does not count for a step's deadline.
_LEASE = """
WITH due AS (
    SELECT seq FROM operations o
    WHERE finished_at IS NULL AND run_at <= $1 AND lease_until <= $1 AND kind = ANY($2)
      AND NOT EXISTS (SELECT 1 FROM operations earlier
                      WHERE earlier.server_id = o.server_id AND earlier.finished_at IS NULL AND earlier.seq < o.seq)
    ORDER BY run_at, seq LIMIT $3 FOR UPDATE SKIP LOCKED)
UPDATE operations SET lease_owner = $4, lease_until = $5, epoch = epoch + 1,
    state = CASE state WHEN 'undoing' THEN 'undoing' ELSE 'running' END,
    step_started_at = COALESCE(step_started_at, $1),
    step_idle = step_idle + CASE WHEN step_started_at IS NULL THEN 0
                                 WHEN lease_until - $6 > run_at THEN $1 - (lease_until - $6) ELSE $1 - run_at END
WHERE seq IN (SELECT seq FROM due)
RETURNING *
"""
_COUNT_LEASE = "UPDATE incarnation SET leases = leases + 1 RETURNING leases"
_RENEW = """
UPDATE operations SET lease_until = $1 WHERE id = ANY($2) AND lease_owner = $3 AND finished_at IS NULL
RETURNING id, cancel_requested
"""
_RELEASE = """
UPDATE operations SET lease_owner = NULL, lease_until = 0, run_at = $2, updated_at = $2,
    state = CASE state WHEN 'undoing' THEN 'undoing' ELSE 'queued' END
WHERE id = ANY($3) AND lease_owner = $1 AND finished_at IS NULL
"""
_END_ALL = """
UPDATE operations SET lease_owner = NULL, lease_until = 0, run_at = $1, updated_at = $1,
    state = CASE state WHEN 'undoing' THEN 'undoing' ELSE 'queued' END,
    step_idle = step_idle + CASE WHEN lease_until - $2 < $1 THEN $1 - (lease_until - $2) ELSE 0 END
WHERE lease_owner IS NOT NULL AND finished_at IS NULL
"""
# State, step and round are part of the fence, so that a write is not repeated if its result was lost.
_fence = attrgetter("seq", "epoch", "lease_owner", "state", "step", "round")
_saved = attrgetter(
    "state", "step", "undo_to", "round", "results", "note", "error", "attempt", "trouble", "host", "round_started_at",
    "step_started_at", "step_idle", "finished_at", "updated_at", "run_at",
)  # fmt: skip
# If a cancel was requested meanwhile, the operation is due now.
_SAVE = """
UPDATE operations SET state = $7, step = $8, undo_to = $9, round = $10, results = $11, note = $12, error = $13,
    attempt = $14, trouble = $15, host = $16, round_started_at = $17, step_started_at = $18, step_idle = $19,
    finished_at = $20, updated_at = $21, progress = NULL,
    run_at = CASE WHEN cancel_requested AND $7 <> 'undoing' THEN CAST($21 AS DOUBLE PRECISION) ELSE $22 END,
    lease_owner = CASE WHEN $23 THEN NULL ELSE lease_owner END, lease_until = CASE WHEN $23 THEN 0 ELSE lease_until END
WHERE seq = $1 AND epoch = $2 AND lease_owner = $3 AND state = $4 AND step = $5 AND round = $6
RETURNING cancel_requested, CASE WHEN finished_at IS NULL THEN FALSE ELSE EXISTS (
    SELECT 1 FROM operations later WHERE later.server_id = operations.server_id AND later.finished_at IS NULL
    AND later.seq > operations.seq) END AS followed
"""
_STEP = """
INSERT INTO operation_steps (operation_id, round, phase, name, outcome, error, host, started_at, finished_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
"""
_UNKNOWN_KINDS = """
UPDATE operations SET trouble = $1
WHERE finished_at IS NULL AND run_at <= $2 AND lease_until <= $2 AND trouble IS NULL AND kind <> ALL($3)
"""


async def lease(
    db: Database, owner: str, seconds: float, kinds: Sequence[str], limit: int
) -> tuple[list[OperationRow], int]:
    """Lease runnable operations: due, not leased, and the first unfinished one of their server.

    Also returns the number of the lease, 0 if there is none. See `kilonova.store.incarnation`.
    """
    now = clock.now()
    async with db.transaction() as tx:
        unrenewed = _longest_unrenewed_seconds(seconds)
        rows = await tx.fetch(_LEASE, now, kinds, limit, owner, now + seconds, unrenewed)
        number = await tx.fetch_value(_COUNT_LEASE) if rows else 0
    return OperationRow.decode_all(rows), number or 0


async def renew(db: Database, owner: str, seconds: float, leased: Sequence[str]) -> dict[str, bool]:
    """Renew leases. Returns the operations still leased, and whether a cancel is requested for each."""
    async with db.transaction() as tx:
        rows = await tx.fetch(_RENEW, clock.now() + seconds, leased, owner)
    return {row["id"]: row["cancel_requested"] for row in rows}


async def release(db: Database, owner: str, leased: Sequence[str]) -> None:
    """Release leases, so that another worker continues immediately."""
    async with db.transaction() as tx:
        await tx.execute(_RELEASE, owner, clock.now(), leased)
        tx.notify(WORK_CHANNEL)


async def end_all_leases(db: Database, seconds: float) -> int:
    """End all leases, for a worker that is the only one. Other workers would only lose their leases."""
    async with db.transaction() as tx:
        return await tx.execute(_END_ALL, clock.now(), _longest_unrenewed_seconds(seconds))


def _longest_unrenewed_seconds(seconds: float) -> float:
    """An expired lease was last renewed at least this long before its end; a live worker renews earlier."""
    return seconds - seconds * RENEWAL_FRACTION


async def find_cancel_requests(db: Database, leased: Sequence[str]) -> list[str]:
    rows = await db.fetch("SELECT id FROM operations WHERE id = ANY($1) AND cancel_requested", leased)
    return [row["id"] for row in rows]


async def save(tx: Transaction, row: OperationRow, changes: Changes, *, release: bool = False) -> OperationRow:
    """Update the row. Raises LostLease if the lease is not ours any more. Returns the new row."""
    after = replace(row, **changes)
    states.check_transition(row.state, after.state)
    found = await tx.fetch_one(_SAVE, *_fence(row), *_saved(after), release)
    if found is None:
        raise LostLease(row.id)
    if found["followed"] or (release and found["cancel_requested"]):
        tx.notify(WORK_CHANNEL)
    return replace(after, cancel_requested=found["cancel_requested"])


async def record_step(
    tx: Transaction,
    row: OperationRow,
    name: str,
    phase: str,
    outcome: str,
    now: float,
    *,
    error: str | None,
    host: str | None,
) -> None:
    await tx.execute(_STEP, row.id, row.round, phase, name, outcome, error, host, row.step_started_at or now, now)


async def report_progress(db: Database, op: Operation, progress: int) -> None:
    async with db.transaction() as tx:
        changed = await tx.execute(
            "UPDATE operations SET progress = $4 WHERE seq = $1 AND epoch = $2 AND lease_owner = $3",
            op.seq,
            op.epoch,
            op.owner,
            progress,
        )
    if not changed:
        raise LostLease(op.id)


async def clean_up(db: Database, kinds: Iterable[str]) -> None:
    """Delete stale events, and record why operations of unknown kinds do not run."""
    reason = StoredError(type="Unknown", message="No worker of this release knows this operation").encode()
    async with db.transaction() as tx:
        await events.delete_stale(tx)
        await tx.execute(_UNKNOWN_KINDS, reason, clock.now(), list(kinds))
