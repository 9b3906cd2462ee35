"""Turns: only so many live migrations leave a host at a time, and the others wait in line for theirs.

Whoever joins or leaves calls those that stand first, in the same transaction. A call is an event, so that waiting holds
nothing and no restart loses it.
"""

from __future__ import annotations

from operator import itemgetter

from kilonova.compute.migrations import model as moves
from kilonova.compute.operations import choosing
from kilonova.operations import Operation, post_event
from kilonova.operations.states import UNDOING
from kilonova.store import Row, Transaction

TAKE = "take turn"


def key(op: Operation) -> str:
    return _key(op.id)


async def join(op: Operation, tx: Transaction) -> None:
    """From the step before the turn."""
    await _call(op, tx, joins=True)


async def leave(op: Operation, tx: Transaction) -> None:
    """Whether it had its turn or still stood in line."""
    await _call(op, tx, leaves=True)


async def look(op: Operation) -> None:
    """In case the line has come to a standstill: the limit may have been raised since anybody joined or left."""
    async with op.db.transaction() as tx:
        await _call(op, tx)


async def _call(op: Operation, tx: Transaction, *, joins: bool = False, leaves: bool = False) -> None:
    source = (await moves.of_operation(tx, op.id))["source_host"]
    await tx.hold(f"live migrations from {source}")
    gone, waiting = 0, []
    # The oldest first, so that none is overtaken for ever.
    for row in sorted(await tx.fetch(_LINE, op.kind, source), key=itemgetter("seq")):
        if row["id"] == op.id and (joins or leaves):
            waiting += [op.id] * joins
        elif _waits(row):
            waiting += [row["id"]] * (not row["cancel_requested"])
        elif _goes(row):
            gone += 1
    limit = op.services.config.compute.live_migrations_per_host
    for first in waiting if limit == 0 else waiting[: max(0, limit - gone)]:
        await post_event(tx, _key(first))


def _waits(row: Row) -> bool:
    return row["step"] == TAKE and row["state"] != UNDOING and not row["called"]


def _goes(row: Row) -> bool:
    """Also one that is on its way back."""
    return row["step"] not in _BEFORE


def _key(operation_id: str) -> str:
    return f"turn of {operation_id}"


_BEFORE = (choosing.CHOOSE, choosing.CLAIM)
# Not in its order, for which SQLite would read what is long finished too.
_LINE = """
SELECT o.seq, o.id, o.step, o.state, o.cancel_requested,
    EXISTS (SELECT 1 FROM operation_waits w WHERE w.operation_id = o.id AND w.posted_at IS NOT NULL)
    OR EXISTS (SELECT 1 FROM operation_events e WHERE e.key = 'turn of ' || o.id) AS called
FROM operations o
WHERE o.finished_at IS NULL AND o.kind = $1
    AND (SELECT m.source_host FROM moves m WHERE m.operation_id = o.id) = $2
"""
