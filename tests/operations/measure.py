"""Measures the overhead of the engine: CPU and wall time of a four-step operation whose steps do nothing.

python -m tests.operations.measure [DATABASE_URL]      # without one, a fresh SQLite file
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
import time

from msgspec import Struct

from kilonova.operations import Operation, Step, StepResult, Worker, begin
from kilonova.services import Services
from kilonova.store import Database, Transaction, open_database
from tests.support.databases import sqlite_template


async def in_transaction(op: Operation, tx: Transaction) -> None: ...


async def outside_transaction(op: Operation) -> dict[str, int]:
    return {"answer": 42}


class Params(Struct, frozen=True):
    name: str


class FourSteps(Operation[Params]):
    kind = "measured"
    action = "measure"
    steps = (
        Step("claim", in_transaction, in_transaction, deadline=30, transaction=True, undo_transaction=True),
        Step(StepResult("ports", dict[str, int]), outside_transaction, outside_transaction, deadline=30),
        Step(StepResult("spawn", dict[str, int]), outside_transaction, outside_transaction, deadline=30),
        Step("settle", in_transaction, None, deadline=30, transaction=True, why="the end"),
    )


class FinishedCounter:
    def __init__(self) -> None:
        self.left = 0
        self.all = asyncio.Event()

    def step_finished(self, kind: str, step: str, phase: str, outcome: str, seconds: float) -> None: ...

    def operation_finished(self, kind: str, state: str) -> None:
        self.left -= 1
        if self.left == 0:
            self.all.set()


async def start(db: Database, number: int) -> None:
    async with db.transaction() as tx:
        await begin(tx, FourSteps, server_id=f"server {number}", params=Params(name="x"))


async def measure(db: Database, counter: FinishedCounter, concurrent: int, times: int) -> None:
    cpu, wall, commits = time.process_time(), time.monotonic(), db.commits
    for batch in range(times):
        counter.left = concurrent
        counter.all.clear()
        await asyncio.gather(*(start(db, batch * concurrent + number) for number in range(concurrent)))
        await counter.all.wait()
    number = concurrent * times
    cpu, wall = (time.process_time() - cpu) / number, (time.monotonic() - wall) / number
    per_commit = (db.commits - commits) / number
    print(
        f"{concurrent:4} at once: {cpu * 1000:.2f} ms CPU, {wall * 1000:.2f} ms, {per_commit:.2f} commits an operation"
    )


async def main(url: str) -> None:
    db = await open_database(url)
    counter = FinishedCounter()
    cpu = time.process_time()
    for number in range(300):
        await start(db, number)
    print(f"begin alone: {(time.process_time() - cpu) / 300 * 1000:.2f} ms CPU")
    async with db.transaction() as tx:
        await tx.execute("DELETE FROM operations")
    worker = Worker(db, Services(), observer=counter, kinds=[FourSteps])
    task = asyncio.create_task(worker.run())
    await measure(db, counter, 1, 20)
    for concurrent, times in ((1, 300), (10, 50), (100, 5)):
        await measure(db, counter, concurrent, times)
    await worker.stop()
    await task
    await db.close()


if __name__ == "__main__":
    import uvloop

    with tempfile.TemporaryDirectory() as directory:
        shutil.copy(sqlite_template(), f"{directory}/kilonova.db")
        uvloop.run(main(sys.argv[1] if len(sys.argv) > 1 else f"sqlite://{directory}/kilonova.db"))
