"""The migration queue: limits how many live migrations leave one host at a time.

An operation that joins or leaves the queue grants free slots to the oldest waiting ones, in the same transaction. A
grant is an event, so that a waiting operation occupies no worker and a restart loses no grant.
"""

from __future__ import annotations

from operator import itemgetter

from kilonova.compute.migrations import model as moves
from kilonova.compute.operations.steps import choose
from kilonova.operations import Operation, post_event
from kilonova.operations.states import UNDOING
from kilonova.store import Row, Transaction

WAIT_FOR_SLOT = "wait for slot"


def slot_event(op: Operation) -> str:
    return _slot_event(op.id)


async def join_queue(op: Operation, tx: Transaction) -> None:
    """Queue the migration. Called by the step that precedes the wait for a slot."""
    await _grant_slots(op, tx, joins=True)


async def leave_queue(op: Operation, tx: Transaction) -> None:
    """Leave the queue, or give the slot back."""
    await _grant_slots(op, tx, leaves=True)


async def recheck(op: Operation) -> None:
    """Grant free slots. The wait polls this, because the configured limit may have been raised."""
    async with op.db.transaction() as tx:
        await _grant_slots(op, tx)


async def _grant_slots(op: Operation, tx: Transaction, *, joins: bool = False, leaves: bool = False) -> None:
    source = (await moves.get_by_operation(tx, op.id)).source_host
    await tx.lock(f"live migrations from {source}")
    running, waiting = 0, []
    # Oldest first, so that no migration waits for ever.
    for row in sorted(await tx.fetch(_QUEUE, op.kind, source), key=itemgetter("seq")):
        if row["id"] == op.id and (joins or leaves):
            waiting += [op.id] * joins
        elif _is_waiting(row):
            waiting += [row["id"]] * (not row["cancel_requested"])
        elif _holds_slot(row):
            running += 1
    limit = op.services.config.compute.live_migrations_per_host
    for operation_id in waiting if limit == 0 else waiting[: max(0, limit - running)]:
        await post_event(tx, _slot_event(operation_id))


def _is_waiting(row: Row) -> bool:
    return row["step"] == WAIT_FOR_SLOT and row["state"] != UNDOING and not row["granted"]


def _holds_slot(row: Row) -> bool:
    """A migration that is being undone still holds its slot."""
    return row["step"] not in _BEFORE


def _slot_event(operation_id: str) -> str:
    return f"live-migration slot of {operation_id}"


_BEFORE = (choose.CHOOSE.name, choose.CLAIM.name)
# Without ORDER BY: SQLite would read finished operations too.
_QUEUE = """
SELECT o.seq, o.id, o.step, o.state, o.cancel_requested,
    EXISTS (SELECT 1 FROM operation_waits w WHERE w.operation_id = o.id AND w.posted_at IS NOT NULL)
    OR EXISTS (SELECT 1 FROM operation_events e WHERE e.key = 'live-migration slot of ' || o.id) AS granted
FROM operations o
WHERE o.finished_at IS NULL AND o.kind = $1
    AND (SELECT m.source_host FROM moves m WHERE m.operation_id = o.id) = $2
"""
