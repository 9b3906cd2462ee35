"""Waits for the result of an operation, for routes whose response depends on it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import TypeVar

from msgspec import Raw, json

from kilonova.compute.servers import action_checks
from kilonova.http import Context, Response
from kilonova.http.errors import BadRequest, Unavailable
from kilonova.operations import Operation
from kilonova.operations.errors import Failed, restore_error
from kilonova.operations.row import decode_error

P = TypeVar("P")

# How long a response waits for its operation, which waits for other operations on the server.
TIMEOUT_SECONDS = 10.0
MIN_POLL_SECONDS, MAX_POLL_SECONDS = 0.005, 0.2
_SQL = "SELECT results, error, finished_at FROM operations WHERE id = $1"
_decode_results = json.Decoder(dict[str, Raw]).decode


async def run_operation(ctx: Context, server_id: str, rule: str, operation: type[Operation[P]], params: P) -> Response:
    """Begin the operation on an unlocked server and wait for it; 400 if it fails."""
    async with ctx.db.transaction() as tx:
        server = await action_checks.find_unlocked(ctx, tx, server_id, rule=rule)
        operation_id = await action_checks.begin_operation(ctx, tx, server, operation, params)
    try:
        await await_results(ctx, operation_id, TIMEOUT_SECONDS)
    except Failed as failure:
        raise BadRequest(str(failure)) from None
    return Response()


async def await_results(ctx: Context, operation_id: str, seconds: float) -> Mapping[str, Raw]:
    """The results by step when the operation has succeeded, or those it has after `seconds`. Raises Failed."""
    until, pause = time.monotonic() + seconds, MIN_POLL_SECONDS
    while True:
        row = await ctx.db.fetch_one(_SQL, operation_id)
        if row is None:
            raise Unavailable("The operation of this request no longer exists.")
        if row["error"] and row["finished_at"]:
            raise restore_error(decode_error(row["error"]))
        if row["finished_at"] or time.monotonic() > until:
            return _decode_results(row["results"])
        await asyncio.sleep(pause)
        pause = min(2 * pause, MAX_POLL_SECONDS)


def result_timeout_seconds(ctx: Context) -> float:
    """Slightly longer than an operation waits for a host that does not respond."""
    return ctx.services.config.operations.host_timeout_seconds + 10.0
