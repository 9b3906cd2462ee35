"""What the engine costs: CPU and time of a four-step operation whose steps do nothing.

python -m tests.operations.measure [DATABASE_URL]      # without one, a fresh SQLite file
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
import time

from kilonova.operations import Operation, Step, Worker, begin
from kilonova.store import Database, Transaction, open_database
from tests.support.databases import sqlite_template


async def inside(op: Operation, tx: Transaction) -> None: ...


async def outside(op: Operation) -> dict[str, int]:
    return {"answer": 42}


class Four(Operation):
    kind = "measured"
    action = "measure"
    steps = (
        Step("claim", inside, inside, deadline=30, transaction=True, undo_transaction=True),
        Step("ports", outside, outside, deadline=30),
        Step("spawn", outside, outside, deadline=30),
        Step("settle", inside, None, deadline=30, transaction=True, why="the end"),
    )


class Ends:
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
        await begin(tx, Four, server_id=f"server {number}", params={"name": "x"})


async def measure(db: Database, ends: Ends, together: int, times: int) -> None:
    cpu, wall, commits = time.process_time(), time.monotonic(), db.commits
    for turn in range(times):
        ends.left = together
        ends.all.clear()
        await asyncio.gather(*(start(db, turn * together + number) for number in range(together)))
        await ends.all.wait()
    number = together * times
    cpu, wall = (time.process_time() - cpu) / number, (time.monotonic() - wall) / number
    per_commit = (db.commits - commits) / number
    print(f"{together:4} at once: {cpu * 1000:.2f} ms CPU, {wall * 1000:.2f} ms, {per_commit:.2f} commits an operation")


async def main(url: str) -> None:
    db = await open_database(url)
    ends = Ends()
    cpu = time.process_time()
    for number in range(300):
        await start(db, number)
    print(f"begin alone: {(time.process_time() - cpu) / 300 * 1000:.2f} ms CPU")
    async with db.transaction() as tx:
        await tx.execute("DELETE FROM operations")
    worker = Worker(db, observer=ends, kinds=[Four])
    task = asyncio.create_task(worker.run())
    await measure(db, ends, 1, 20)
    for together, times in ((1, 300), (10, 50), (100, 5)):
        await measure(db, ends, together, times)
    await worker.stop()
    await task
    await db.close()


if __name__ == "__main__":
    import uvloop

    with tempfile.TemporaryDirectory() as directory:
        shutil.copy(sqlite_template(), f"{directory}/kilonova.db")
        uvloop.run(main(sys.argv[1] if len(sys.argv) > 1 else f"sqlite://{directory}/kilonova.db"))
