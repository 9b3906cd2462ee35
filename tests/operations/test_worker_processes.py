"""Two worker processes on PostgreSQL: one is stopped or killed inside a step, and the other continues."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import orjson
import pytest

from tests.operations.support import begin_operation, get_row, wait_until_finished
from tests.operations.worker_process import Remote
from tests.support import run
from tests.support.databases import opened


class Host:
    """A small agent that refuses lower epochs than it has seen, and can delay its first reply."""

    def __init__(self) -> None:
        self.done: list[tuple[str, str]] = []
        self.refused: list[tuple[str, str]] = []
        self.epochs: dict[str, int] = {}
        self.received = asyncio.Event()
        self.reply = asyncio.Event()
        self.replied = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            received = json.loads(line)
            reply = {}
            if received["epoch"] < self.epochs.get(received["operation"], 0):
                self.refused.append((received["worker"], received["part"]))
                reply = {"error": "stale epoch"}
            else:
                self.epochs[received["operation"]] = received["epoch"]
                self.done.append((received["worker"], received["part"]))
                if not self.received.is_set():
                    self.received.set()
                    await self.reply.wait()
            writer.write(json.dumps(reply).encode() + b"\n")
            if self.reply.is_set():
                await writer.drain()
                self.replied.set()
        writer.close()


@asynccontextmanager
async def process(url: str, host: Path, name: str) -> AsyncIterator[asyncio.subprocess.Process]:
    arguments = [sys.executable, "-m", "tests.operations.worker_process", url, str(host), name]
    worker = await asyncio.create_subprocess_exec(*arguments, cwd=Path(__file__).parents[2])
    try:
        yield worker
    finally:
        if worker.returncode is None:
            worker.kill()
            await worker.wait()


@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL])
def test_second_worker_continues_and_first_is_fenced(postgresql_url: str, tmp_path: Path, how: signal.Signals) -> None:
    async def scenario() -> None:
        host, path = Host(), tmp_path / "host"
        server = await asyncio.start_unix_server(host.serve, path)
        async with server, opened(postgresql_url) as db, process(postgresql_url, path, "one") as one:
            operation_id = await begin_operation(db, Remote)
            async with asyncio.timeout(60):
                await host.received.wait()
            assert (await get_row(db, operation_id))["lease_owner"] == "one"
            one.send_signal(how)
            async with db.transaction() as tx:
                await tx.execute("UPDATE operations SET lease_until = 0")
            async with process(postgresql_url, path, "two"):
                row = await wait_until_finished(db, operation_id)
                assert (row["state"], row["epoch"]) == ("done", 2)
                assert orjson.loads(row["results"]) == {"first": "two", "second": "two"}
                assert host.done == [("one", "a"), ("two", "a"), ("two", "b"), ("two", "c")]
                if how is signal.SIGSTOP:
                    host.reply.set()
                    await host.replied.wait()
                    one.send_signal(signal.SIGCONT)
                    await _refused(host)
                    await asyncio.sleep(0.3)
                    assert one.returncode is None
                    assert len(host.done) == 4
            assert await get_row(db, operation_id) == row
            steps = await db.fetch("SELECT name FROM operation_steps WHERE operation_id = $1", operation_id)
            assert len(steps) == 2

    async def _refused(host: Host) -> None:
        """The first worker gets the reply to its first command and sends the second, which is refused."""
        async with asyncio.timeout(60):
            while not host.refused:
                await asyncio.sleep(0.01)
        assert host.refused == [("one", "b")]

    run(scenario())
