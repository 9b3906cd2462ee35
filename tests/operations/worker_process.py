"""A worker process for tests that stop and kill it. Arguments: database URL, host's socket, name.

The worker is stopped or killed while the host runs the first command of its operation.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from kilonova.operations import Failed, Operation, Step, StepResult, Worker
from kilonova.store import open_database

LEASE_SECONDS = 300.0
"""Long enough for a slow machine. The test ends the lease itself."""


async def command(op: Operation, *parts: str) -> Any:
    """Send commands to the host, one after the other. Each has the lease's epoch."""
    reader, writer = await asyncio.open_unix_connection(op.services["host"])
    try:
        for part in parts:
            request = {"operation": op.id, "part": part, "epoch": op.epoch, "worker": op.services["name"]}
            writer.write(json.dumps(request).encode() + b"\n")
            reply = json.loads(await reader.readline())
            if "error" in reply:
                raise Failed(reply["error"])
    finally:
        writer.close()
    return op.services["name"]


async def first(op: Operation) -> Any:
    return await command(op, "a", "b")


async def second(op: Operation) -> Any:
    return await command(op, "c")


async def undo(op: Operation) -> None:
    await command(op, "take back")


class Remote(Operation):
    kind = "test remote"
    action = "remote"
    steps = (
        Step(StepResult("first", str), first, undo, deadline=60),
        Step(StepResult("second", str), second, undo, deadline=60),
    )


async def main(url: str, host: str, name: str) -> None:
    db = await open_database(url)
    worker = Worker(db, {"host": host, "name": name}, owner=name, lease=LEASE_SECONDS, sweep=0.1)
    await worker.run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
