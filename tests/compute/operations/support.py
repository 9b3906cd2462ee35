"""Helpers for tests of operations: wait for all operations, and list the unfinished ones."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from msgspec import convert

from kilonova.operations import Operation, begin
from kilonova.store import Database, Transaction
from tests.support.full_cloud import TIMEOUT_SECONDS, FullCloud

SHORT_HOST_TIMEOUT: dict[str, Any] = {"operations__host_timeout_seconds": 0.3}


async def begin_stored(tx: Transaction, operation: type[Operation], params: Mapping[str, Any], **options: Any) -> str:
    """Begin an operation with parameters in their stored form. Returns the operation's id."""
    return await begin(tx, operation, params=convert(params, operation.params_type), **options)


async def finish_operations(c: FullCloud) -> None:
    """Wait until all operations have finished. Those that pause before a retry run at once."""
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while await c.db.fetch_value("SELECT COUNT(*) FROM operations WHERE finished_at IS NULL"):
            async with c.db.transaction() as tx:
                await tx.execute("UPDATE operations SET run_at = 0 WHERE finished_at IS NULL AND lease_until <= 0")
                tx.notify("operations")
            await asyncio.sleep(0.02)


async def wait_until_finished(db: Database) -> None:
    """Wait until all operations have finished."""
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while await db.fetch_value("SELECT COUNT(*) FROM operations WHERE finished_at IS NULL"):
            await asyncio.sleep(0.005)


async def unfinished_kinds(c: FullCloud) -> list[str]:
    """The kinds of the operations that have not finished."""
    return [row["kind"] for row in await c.db.fetch("SELECT kind FROM operations WHERE finished_at IS NULL")]
