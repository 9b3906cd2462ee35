"""Waiting for an operation: for the few routes whose answer tells what has come of it."""

from __future__ import annotations

import asyncio
import time

import orjson

from kilonova.http import Context
from kilonova.http.errors import Unavailable
from kilonova.operations.errors import Failed, restore
from kilonova.store import Row

SHORTEST, LONGEST = 0.005, 0.2
_SQL = "SELECT state, results, error, finished_at FROM operations WHERE id = $1"


async def outcome(ctx: Context, operation_id: str, seconds: float) -> Row:
    """The operation with its results once it has succeeded, or as it is after so many seconds. Raises Failed."""
    until, pause = time.monotonic() + seconds, SHORTEST
    while True:
        row = await ctx.db.fetch_one(_SQL, operation_id)
        if row is None:
            raise Unavailable("Nothing is known of what was asked for any more.")
        if row["error"] and row["finished_at"]:
            raise restore(orjson.loads(row["error"]))
        if row["finished_at"] or time.monotonic() > until:
            return {**row, "results": orjson.loads(row["results"])}
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST)


def seconds(ctx: Context) -> float:
    """A little longer than an operation waits for a host that does not answer."""
    return ctx.services.config.operations.host_seconds + 10.0


__all__ = ["Failed", "outcome", "seconds"]
