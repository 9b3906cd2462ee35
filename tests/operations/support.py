"""Operations whose steps call functions of a test, and a worker to run them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from msgspec import Struct

from kilonova.operations import Operation, Step, StepResult, Wait, Worker, begin
from kilonova.store import Database, Row, Transaction


class ScriptedServices:
    """The worker's `services`: records calls, and runs the test's function for each."""

    def __init__(self, **on: Callable[..., Awaitable[Any]]) -> None:
        self.log: list[str] = []
        self.on = on
        self.failed: list[Exception] = []

    async def call(self, name: str, *args: Any) -> Any:
        self.log.append(name)
        return await self.on[name](*args) if name in self.on else None

    def count(self, name: str) -> int:
        return self.log.count(name)


def scripted(name: str) -> Callable[..., Awaitable[Any]]:
    async def call(op: Operation, *tx: Transaction) -> Any:
        return await op.services.call(name, op, *tx)

    return call


class ScriptParams(Struct, frozen=True):
    size: int = 0
    number: int = 0
    do: str = ""


class RecordedFailure(Operation[ScriptParams]):
    async def failed(op, tx: Transaction, error: Exception) -> None:
        op.services.failed.append(error)
        await op.services.call("failed", op, tx, error)


class ThreeSteps(RecordedFailure):
    kind = "test three"
    action = "create"
    task_state = "building"
    steps = (
        Step(
            StepResult("one", object),
            scripted("one"),
            scripted("undo_one"),
            deadline=300,
            transaction=True,
            task_state="claiming",
        ),
        Step(StepResult("two", object), scripted("two"), scripted("undo_two"), deadline=300),
        Step("three", scripted("three"), None, deadline=300, why="the end"),
    )


class WaitingOperation(RecordedFailure):
    kind = "test waiting"
    action = "attach"
    steps = (
        Step("ask", scripted("ask"), scripted("undo_ask"), deadline=300),
        Wait(StepResult("hear", object), key=lambda op: f"answer:{op.server_id}", deadline=300),
        Step("use", scripted("use"), scripted("undo_use"), deadline=300, undo_transaction=True),
    )


@asynccontextmanager
async def running_worker(db: Database, services: Any = None, **options: Any) -> AsyncIterator[Worker]:
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


async def begin_operation(db: Database, operation: type[Operation], **options: Any) -> str:
    async with db.transaction() as tx:
        return await begin(tx, operation, **options)


async def get_row(db: Database, operation_id: str) -> Row:
    row = await db.fetch_one("SELECT * FROM operations WHERE id = $1", operation_id)
    assert row is not None
    return row


async def wait_until(db: Database, operation_id: str, holds: Callable[[Row], bool], seconds: float = 100) -> Row:
    """The row as soon as the condition holds."""
    row: Row = {}
    try:
        async with asyncio.timeout(seconds):
            while not holds(row := await get_row(db, operation_id)):
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"still {row}") from None
    return row


async def wait_until_idle(worker: Worker, seconds: float = 100) -> None:
    """Wait until the worker runs no operation, so that all its results are recorded."""
    async with asyncio.timeout(seconds):
        while worker._tasks:
            await asyncio.sleep(0.005)


async def wait_until_finished(db: Database, operation_id: str, seconds: float = 100) -> Row:
    return await wait_until(db, operation_id, lambda row: row["finished_at"] is not None, seconds)


async def recorded_steps(db: Database, operation_id: str) -> list[tuple[str, str, str]]:
    rows = await db.fetch(
        "SELECT * FROM operation_steps WHERE operation_id = $1 ORDER BY finished_at, started_at", operation_id
    )
    return [(row["name"], row["phase"], row["outcome"]) for row in rows]
