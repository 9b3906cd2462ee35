"""Exports for tests: the real daemon, and QEMU's own tools as its clients."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from kilonova.ids import new_id
from kilonova.volume.exports.daemon import Daemon
from kilonova.volume.exports.keeper import Keeper
from tests.volume.support import VolumeCloud, volume_cloud

TOOLS = ("qemu-storage-daemon", "qemu-io", "qemu-img")
CONNECTOR = {"host": "h1", "kilonova_nbd": True}
SECONDS = 60.0


def require() -> None:
    lacking = [tool for tool in TOOLS if shutil.which(tool) is None]
    if lacking and os.environ.get("KILONOVA_REQUIRE_ALL") == "1":
        pytest.fail(f"missing: {', '.join(lacking)}, and KILONOVA_REQUIRE_ALL=1")
    if lacking:
        pytest.skip(f"exports need {', '.join(lacking)}")


@asynccontextmanager
async def exporting(
    database_url: str, *, watch: bool = False, **flags: Any
) -> AsyncIterator[tuple[VolumeCloud, Keeper]]:
    """A volume service whose daemon is gone afterwards."""
    async with volume_cloud(database_url, **flags) as c:
        keeper = Keeper(c.services.config, c.db)
        watching = asyncio.create_task(keeper.watch()) if watch else None
        try:
            yield c, keeper
        finally:
            if watching is not None:
                watching.cancel()
                await asyncio.wait([watching])
            await end(Daemon.of(c.services.config))


async def end(daemon: Daemon) -> None:
    async with daemon.session(start=False) as session:
        if session is not None:
            await session.quit()
    async with asyncio.timeout(SECONDS):
        while daemon.is_alive():
            await asyncio.sleep(0.01)


def pid_of(data: Path) -> int:
    return pid_of_directory(data / "exports")


def pid_of_directory(directory: Path) -> int:
    return int((directory / "pid").read_text())


def kill(data: Path) -> int:
    """kill -9, and the daemon is gone when this returns."""
    pid = pid_of(data)
    os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError, FileNotFoundError):
        # Its first thread may be dead before the others.
        while len(os.listdir(f"/proc/{pid}/task")) > 1 or " Z " not in Path(f"/proc/{pid}/stat").read_text():
            os.kill(pid, 0)
    return pid


async def attach(c: VolumeCloud, volume_id: str, server_id: str | None = None, **keys: Any) -> dict[str, Any]:
    """An attachment that is complete; with its connection."""
    asked = {"volume_uuid": volume_id, "instance_uuid": server_id or new_id(), "connector": CONNECTOR, **keys}
    answer = await c.post("/attachments", {"attachment": asked}, as_="admin")
    assert answer.status == 200, answer.body
    made: dict[str, Any] = answer.json()["attachment"]
    done = await c.post(f"/attachments/{made['id']}/action", {"os-complete": {}}, as_="admin")
    assert done.status == 204, done.body
    return made


def url(way: dict[str, Any]) -> str:
    return f"nbd://{way['host']}:{way['port']}/{way['export']}"


async def io(way: dict[str, Any], *commands: str, read_only: bool = False) -> str:
    """What a client said that did this and went; "failed" with its words if it could not."""
    options = [option for command in commands for option in ("-c", command)]
    process = await asyncio.create_subprocess_exec(
        *("qemu-io", "-f", "raw", *(("-r",) if read_only else ()), *options, url(way)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await asyncio.wait_for(process.communicate(), SECONDS)
    text = output.decode()
    return f"failed {text}" if process.returncode else text


async def size_of(way: dict[str, Any]) -> int:
    process = await asyncio.create_subprocess_exec(
        *("qemu-img", "info", "--output=json", url(way)), stdout=asyncio.subprocess.PIPE
    )
    output, _ = await asyncio.wait_for(process.communicate(), SECONDS)
    return int(orjson.loads(output)["virtual-size"])


class Client:
    """One that stays connected, and waits for the daemon as guests do."""

    def __init__(self, way: dict[str, Any], seconds: int = 60) -> None:
        options = {
            "driver": "raw",
            "file.driver": "nbd",
            "file.server.type": "inet",
            "file.server.host": way["host"],
            "file.server.port": way["port"],
            "file.export": way["export"],
            "file.reconnect-delay": seconds,
        }
        self.process = subprocess.Popen(
            ["qemu-io", "--image-opts", ",".join(f"{name}={value}" for name, value in options.items())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            bufsize=0,
        )
        # It is connected only then, and whoever is not yet does not wait for the daemon.
        self._say("length")
        assert "iB" in (said := self._line("iB")), said

    async def do(self, command: str, word: str) -> str:
        """The line with the word that comes after the command."""
        self._say(command)
        return await asyncio.wait_for(asyncio.to_thread(self._line, word), SECONDS)

    def _say(self, command: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def _line(self, word: str) -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if word in line or "failed" in line or "error" in line:
                return line
        return "ended"


@contextmanager
def client(way: dict[str, Any], seconds: int = 60) -> Iterator[Client]:
    one = Client(way, seconds)
    try:
        yield one
    finally:
        one.process.kill()
        one.process.wait()
