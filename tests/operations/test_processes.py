"""Two real workers on PostgreSQL: one is stopped or killed inside a step, the other goes on, the first does no harm."""

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

from tests.operations.support import finished, row_of, start
from tests.operations.worker_process import Remote
from tests.support import run
from tests.support.databases import opened


class Host:
    """A small agent: refuses an epoch lower than one it has seen, and lets a test delay its first answer."""

    def __init__(self) -> None:
        self.done: list[tuple[str, str]] = []
        self.refused: list[tuple[str, str]] = []
        self.epochs: dict[str, int] = {}
        self.asked = asyncio.Event()
        self.answer = asyncio.Event()
        self.answered = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            asked = json.loads(line)
            answer = {}
            if asked["epoch"] < self.epochs.get(asked["operation"], 0):
                self.refused.append((asked["worker"], asked["part"]))
                answer = {"error": "stale epoch"}
            else:
                self.epochs[asked["operation"]] = asked["epoch"]
                self.done.append((asked["worker"], asked["part"]))
                if not self.asked.is_set():
                    self.asked.set()
                    await self.answer.wait()
            writer.write(json.dumps(answer).encode() + b"\n")
            if self.answer.is_set():
                await writer.drain()
                self.answered.set()
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
def test_another_worker_goes_on_and_the_first_can_do_no_harm(
    postgresql_url: str, tmp_path: Path, how: signal.Signals
) -> None:
    async def scenario() -> None:
        host, path = Host(), tmp_path / "host"
        server = await asyncio.start_unix_server(host.serve, path)
        async with server, opened(postgresql_url) as db, process(postgresql_url, path, "one") as one:
            identity = await start(db, Remote)
            async with asyncio.timeout(60):
                await host.asked.wait()
            assert (await row_of(db, identity))["lease_owner"] == "one"
            one.send_signal(how)
            async with db.transaction() as tx:
                await tx.execute("UPDATE operations SET lease_until = 0")
            async with process(postgresql_url, path, "two"):
                row = await finished(db, identity)
                assert (row["state"], row["epoch"]) == ("done", 2)
                assert orjson.loads(row["results"]) == {"first": "two", "second": "two"}
                assert host.done == [("one", "a"), ("two", "a"), ("two", "b"), ("two", "c")]
                if how is signal.SIGSTOP:
                    host.answer.set()
                    await host.answered.wait()
                    one.send_signal(signal.SIGCONT)
                    await _refused(host)
                    await asyncio.sleep(0.3)
                    assert one.returncode is None
                    assert len(host.done) == 4
            assert await row_of(db, identity) == row
            steps = await db.fetch("SELECT name FROM operation_steps WHERE operation_id = $1", identity)
            assert len(steps) == 2

    async def _refused(host: Host) -> None:
        """It gets the answer to its first command and sends the second, not knowing how late it is."""
        async with asyncio.timeout(60):
            while not host.refused:
                await asyncio.sleep(0.01)
        assert host.refused == [("one", "b")]

    run(scenario())
