"""Events and the waits for them: each is a row, so neither order nor a restart loses one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from kilonova import clock
from kilonova.operations.requests import WORK
from kilonova.operations.table import Wait
from kilonova.store import Row, Transaction

STALE_AFTER = 3600.0
"""Seconds after which an event that nobody waited for is forgotten."""

_DELIVER = """
UPDATE operation_waits SET posted_at = $2, payload = $3 WHERE key = $1 AND posted_at IS NULL RETURNING operation_id
"""
_RESUME = """
UPDATE operations SET state = 'queued', run_at = $2, updated_at = $2 WHERE id = ANY($1) AND state = 'waiting'
"""
# Only events of this round: one that an earlier attempt left behind says nothing about this one.
_TAKE = """
DELETE FROM operation_events WHERE seq = (
    SELECT seq FROM operation_events WHERE key = $1 AND created_at >= $2 ORDER BY seq LIMIT 1)
RETURNING payload
"""


async def post_event(tx: Transaction, key: str, payload: Any = None) -> bool:
    """Wake the operations that wait for the key; without any, keep the event for one that will. True if any waited."""
    await _hold(tx, key)
    now, text = clock.now(), orjson.dumps(payload).decode()
    waiting = [row["operation_id"] for row in await tx.fetch(_DELIVER, key, now, text)]
    if waiting:
        await tx.execute(_RESUME, waiting, now)
        tx.wake(WORK)
    else:
        await tx.execute("INSERT INTO operation_events (key, payload, created_at) VALUES ($1, $2, $3)", key, text, now)
    return bool(waiting)


@dataclass(slots=True)
class Look:
    arrived: bool
    payload: Any = None
    poll_at: float | None = None


async def look(tx: Transaction, row: Row, wait: Wait, key: str, *, polled: bool) -> Look:
    """Whether the event has come. If not, the wait's row is there from now on; `polled` sets its next poll."""
    await _hold(tx, key)
    now = clock.now()
    next_poll = now + wait.poll_every if wait.poll else None
    known = await tx.fetch_one("SELECT * FROM operation_waits WHERE operation_id = $1", row["id"])
    if known is None:
        if early := await tx.fetch_one(_TAKE, key, row["round_started_at"]):
            return Look(True, orjson.loads(early["payload"]))
        await tx.execute(
            "INSERT INTO operation_waits (operation_id, name, key, poll_at, created_at) VALUES ($1, $2, $3, $4, $5)",
            row["id"],
            wait.name,
            key,
            now if wait.polls_first else next_poll,
            now,
        )
        return Look(False, poll_at=now if wait.polls_first else next_poll)
    if known["posted_at"] is not None:
        return Look(True, orjson.loads(known["payload"]))
    if polled:
        await tx.execute("UPDATE operation_waits SET poll_at = $2 WHERE operation_id = $1", row["id"], next_poll)
        return Look(False, poll_at=next_poll)
    return Look(False, poll_at=known["poll_at"])


async def stop_waiting(tx: Transaction, operation_id: str) -> None:
    await tx.execute("DELETE FROM operation_waits WHERE operation_id = $1", operation_id)


async def clean(tx: Transaction) -> None:
    await tx.execute("DELETE FROM operation_events WHERE created_at < $1", clock.now() - STALE_AFTER)


async def _hold(tx: Transaction, key: str) -> None:
    """Without it, a wait and its event that are written at the same moment would not see each other."""
    await tx.hold(f"event {key}")
