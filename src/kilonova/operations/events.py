"""Events and waits. Both are rows, so that no event is lost by a restart or by its order."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec import json

from kilonova import clock
from kilonova.operations.control import WORK_CHANNEL
from kilonova.operations.definition import O_contra, Wait
from kilonova.operations.row import OperationRow
from kilonova.store import Transaction

STALE_AFTER_SECONDS = 3600.0
"""An event that no operation waits for is deleted after this time."""

_DELIVER = """
UPDATE operation_waits SET posted_at = $2, payload = $3 WHERE key = $1 AND posted_at IS NULL RETURNING operation_id
"""
_RESET = "UPDATE operation_waits SET posted_at = NULL, payload = NULL, poll_at = $2 WHERE operation_id = $1"
_RESUME = """
UPDATE operations SET state = 'queued', run_at = $2, updated_at = $2 WHERE id = ANY($1) AND state = 'waiting'
"""
# Events of earlier rounds do not count.
_CONSUME = """
DELETE FROM operation_events WHERE seq = (
    SELECT seq FROM operation_events WHERE key = $1 AND created_at >= $2 ORDER BY seq LIMIT 1)
RETURNING payload
"""


async def post_event(tx: Transaction, key: str, payload: object = None, *, stored: bool = True) -> bool:
    """Resume the operations that wait for the key. If there are none, store the event and return False.

    An event for waits that take it as a hint need not be `stored`: these waits poll first.
    """
    await _lock(tx, key)
    now, text = clock.now(), json.encode(payload).decode()
    waiting = [row["operation_id"] for row in await tx.fetch(_DELIVER, key, now, text)]
    if waiting:
        await tx.execute(_RESUME, waiting, now)
        tx.notify(WORK_CHANNEL)
    elif stored:
        await tx.execute("INSERT INTO operation_events (key, payload, created_at) VALUES ($1, $2, $3)", key, text, now)
    return bool(waiting)


@dataclass(slots=True)
class EventCheck:
    arrived: bool
    payload: object = None
    poll_at: float | None = None


async def check_event(
    tx: Transaction, row: OperationRow, wait: Wait[O_contra], key: str, *, polled: bool
) -> EventCheck:
    """Whether the event has arrived. If not, write the wait's row. After a poll (`polled`), schedule the next one."""
    await _lock(tx, key)
    now = clock.now()
    next_poll = now + wait.poll_every if wait.poll else None
    known = await tx.fetch_one("SELECT * FROM operation_waits WHERE operation_id = $1", row.id)
    if known is None:
        earlier = None if wait.is_hint else await tx.fetch_one(_CONSUME, key, row.round_started_at)
        if earlier:
            return EventCheck(True, json.decode(earlier["payload"]))
        await tx.execute(
            "INSERT INTO operation_waits (operation_id, name, key, poll_at, created_at) VALUES ($1, $2, $3, $4, $5)",
            row.id,
            wait.name,
            key,
            now if wait.poll_first else next_poll,
            now,
        )
        return EventCheck(False, poll_at=now if wait.poll_first else next_poll)
    if known["posted_at"] is not None and wait.is_hint:
        # An event that comes from now on is noticed after the poll.
        await tx.execute(_RESET, row.id, now)
        return EventCheck(False, poll_at=now)
    if known["posted_at"] is not None:
        return EventCheck(True, json.decode(known["payload"]))
    if polled:
        await tx.execute("UPDATE operation_waits SET poll_at = $2 WHERE operation_id = $1", row.id, next_poll)
        return EventCheck(False, poll_at=next_poll)
    return EventCheck(False, poll_at=known["poll_at"])


async def delete_wait(tx: Transaction, operation_id: str) -> None:
    await tx.execute("DELETE FROM operation_waits WHERE operation_id = $1", operation_id)


async def delete_stale(tx: Transaction) -> None:
    await tx.execute("DELETE FROM operation_events WHERE created_at < $1", clock.now() - STALE_AFTER_SECONDS)


async def _lock(tx: Transaction, key: str) -> None:
    """Serialize waits and events of a key: concurrent transactions would not see each other's rows."""
    await tx.lock(f"event {key}")
