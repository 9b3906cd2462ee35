"""Operations whose steps do what a test tells them, and a worker to carry them out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from kilonova.operations import Operation, Step, Wait, Worker, begin
from kilonova.store import Database, Row, Transaction


class Script:
    """The worker's `services`: remembers what was called, and what each call shall do."""

    def __init__(self, **on: Callable[..., Awaitable[Any]]) -> None:
        self.log: list[str] = []
        self.on = on
        self.failed: list[Exception] = []

    async def call(self, name: str, *args: Any) -> Any:
        self.log.append(name)
        return await self.on[name](*args) if name in self.on else None

    def count(self, name: str) -> int:
        return self.log.count(name)


def act(name: str) -> Callable[..., Awaitable[Any]]:
    async def call(op: Operation, *tx: Transaction) -> Any:
        return await op.services.call(name, op, *tx)

    return call


class Noted(Operation):
    async def failed(op, tx: Transaction, error: Exception) -> None:
        op.services.failed.append(error)
        await op.services.call("failed", op, tx, error)


class Three(Noted):
    kind = "test three"
    action = "create"
    task_state = "building"
    steps = (
        Step("one", act("one"), act("undo_one"), deadline=300, transaction=True, task_state="claiming"),
        Step("two", act("two"), act("undo_two"), deadline=300),
        Step("three", act("three"), None, deadline=300, why="the end"),
    )


class Waiting(Noted):
    kind = "test waiting"
    action = "attach"
    steps = (
        Step("ask", act("ask"), act("undo_ask"), deadline=300),
        Wait("hear", key=lambda op: f"answer:{op.server_id}", deadline=300),
        Step("use", act("use"), act("undo_use"), deadline=300, undo_transaction=True),
    )


@asynccontextmanager
async def working(db: Database, services: Any = None, **options: Any) -> AsyncIterator[Worker]:
    options.setdefault("sweep", 0.2)
    options.setdefault("backoff", lambda attempt: 0.01)
    worker = Worker(db, services, **options)
    task = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        if not task.done():
            await worker.stop(grace=0.5)
        await asyncio.wait([task])
        if not task.cancelled():
            task.result()


async def start(db: Database, operation: type[Operation], **options: Any) -> str:
    async with db.transaction() as tx:
        return await begin(tx, operation, **options)


async def row_of(db: Database, identity: str) -> Row:
    row = await db.fetch_one("SELECT * FROM operations WHERE id = $1", identity)
    assert row is not None
    return row


async def until(db: Database, identity: str, holds: Callable[[Row], bool], seconds: float = 100) -> Row:
    """The row as soon as the condition holds."""
    row: Row = {}
    try:
        async with asyncio.timeout(seconds):
            while not holds(row := await row_of(db, identity)):
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"still {row}") from None
    return row


async def idle(worker: Worker, seconds: float = 100) -> None:
    """Until the worker carries out nothing any more: what its operations did last is then written, or never will be."""
    async with asyncio.timeout(seconds):
        while worker._tasks:
            await asyncio.sleep(0.005)


async def finished(db: Database, identity: str, seconds: float = 100) -> Row:
    return await until(db, identity, lambda row: row["finished_at"] is not None, seconds)


async def steps_of(db: Database, identity: str) -> list[tuple[str, str, str]]:
    rows = await db.fetch(
        "SELECT * FROM operation_steps WHERE operation_id = $1 ORDER BY finished_at, started_at", identity
    )
    return [(row["name"], row["phase"], row["outcome"]) for row in rows]
