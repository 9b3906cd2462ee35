"""A worker in a process of its own, for the tests that stop and kill it. Arguments: database URL, host's socket, name.

While the host works on the first command of its operation, the worker is stopped or killed.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from kilonova.operations import Failed, Operation, Step, Worker
from kilonova.store import open_database

LEASE = 300.0
"""No process overruns it by standing still; the test ends it where it shall have run out."""


async def command(op: Operation, *parts: str) -> Any:
    """Ask the host for one thing after the other; each command carries the lease's epoch."""
    reader, writer = await asyncio.open_unix_connection(op.services["host"])
    try:
        for part in parts:
            asked = {"operation": op.id, "part": part, "epoch": op.epoch, "worker": op.services["name"]}
            writer.write(json.dumps(asked).encode() + b"\n")
            answer = json.loads(await reader.readline())
            if "error" in answer:
                raise Failed(answer["error"])
    finally:
        writer.close()
    return op.services["name"]


async def first(op: Operation) -> Any:
    return await command(op, "a", "b")


async def second(op: Operation) -> Any:
    return await command(op, "c")


async def take_back(op: Operation) -> None:
    await command(op, "take back")


class Remote(Operation):
    kind = "test remote"
    action = "remote"
    steps = (
        Step("first", first, take_back, deadline=60),
        Step("second", second, take_back, deadline=60),
    )


async def main(url: str, host: str, name: str) -> None:
    db = await open_database(url)
    worker = Worker(db, {"host": host, "name": name}, owner=name, lease=LEASE, sweep=0.1)
    await worker.run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
