"""The process of qemu-storage-daemon: start, shared use and replacement."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import orjson
import pytest

from kilonova.volume.exports.daemon import Daemon
from tests.support import run
from tests.volume.exports import support


@pytest.fixture(autouse=True)
def tools() -> None:
    support.require()


def test_data_directory_may_have_a_long_path(tmp_path: Path) -> None:
    """The path is longer than the limit of socket paths."""
    directory = tmp_path / ("d" * 100) / ("e" * 100)

    async def scenario() -> None:
        daemon = Daemon(directory, "127.0.0.1", 0)
        async with daemon.session(start=True) as session:
            assert session is not None
            assert await session.exports() == {}
        before = support.pid_of_directory(directory)
        async with Daemon(directory, "127.0.0.1", 0).session(start=True) as session:
            assert session is not None
        assert support.pid_of_directory(directory) == before
        assert os.getsid(before) != os.getsid(0)
        await support.end(daemon)

    run(scenario())


def test_processes_share_one_daemon(tmp_path: Path) -> None:
    async def scenario() -> None:
        daemons = [Daemon(tmp_path / "exports", "127.0.0.1", 0) for _ in range(8)]

        async def ask(daemon: Daemon) -> tuple[int, int]:
            port = daemon.address().port
            async with daemon.session(start=True) as session:
                assert session is not None
                await session.exports()
                return port, support.pid_of(tmp_path)

        try:
            assert len(set(await asyncio.gather(*map(ask, daemons)))) == 1
        finally:
            await support.end(daemons[0])

    run(scenario())


def test_exiting_daemon_is_replaced(tmp_path: Path) -> None:
    """A session during the exit finds the lock held and the socket closing."""

    async def scenario() -> None:
        daemon = Daemon(tmp_path / "exports", "127.0.0.1", 0)
        try:
            for _ in range(30):
                async with daemon.session(start=True) as session:
                    assert session is not None
                    assert await session.exports() == {}
                os.kill(support.pid_of(tmp_path), signal.SIGKILL)
        finally:
            await support.end(daemon)

    run(scenario())


_EVENT = b'{"timestamp": {"seconds": 1, "microseconds": 0}, "event": "JOB_STATUS_CHANGE", "data": {}}'
_FAILED = b'{"id": "__qmp#00004", "error": {"class": "GenericError", "desc": "of a previous client"}}'
_DONE = b'{"id": "__qmp#00000", "return": "of a previous client"}'


@pytest.mark.parametrize("early", [b"", _EVENT, _FAILED, _DONE], ids=["none", "event", "error", "response"])
@pytest.mark.parametrize("late", [b"", _EVENT, _FAILED, _DONE], ids=["none", "event", "error", "response"])
def test_connect_ignores_unexpected_messages(tmp_path: Path, early: bytes, late: bytes) -> None:
    """The real daemon rarely sends such messages before its greeting or its first response. This one always does."""
    greeting = b'{"QMP": {"version": {}, "capabilities": ["oob"]}}'
    messages = [(early, late)] * 2

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first, then = messages.pop(0) if messages else (b"", b"")
        writer.write(b"".join(line + b"\r\n" for line in (first, greeting, then) if line))
        while data := await reader.read(4096):
            requested = orjson.loads(data)
            reply = {"id": requested["id"], "return": requested["execute"]} if "id" in requested else {"return": {}}
            writer.write(orjson.dumps(reply) + b"\r\n")
        writer.close()

    async def scenario() -> None:
        daemon = Daemon(tmp_path, "127.0.0.1", 0)
        async with await asyncio.start_unix_server(serve, tmp_path / "socket"):
            client = await daemon._connect()
            assert await client.execute("query-jobs") == "query-jobs"
            await client.disconnect()

    run(scenario())
