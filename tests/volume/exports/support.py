"""The real daemon, with QEMU's tools as clients."""

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
from kilonova.volume.exports.manager import ExportManager
from tests.volume.support import VolumeCloud, volume_cloud

TOOLS = ("qemu-storage-daemon", "qemu-io", "qemu-img")
CONNECTOR = {"host": "h1", "kilonova_nbd": True}
SECONDS = 60.0


def require() -> None:
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing and os.environ.get("KILONOVA_REQUIRE_ALL") == "1":
        pytest.fail(f"missing: {', '.join(missing)}, and KILONOVA_REQUIRE_ALL=1")
    if missing:
        pytest.skip(f"exports need {', '.join(missing)}")


@asynccontextmanager
async def exporting(
    database_url: str, *, watch: bool = False, **flags: Any
) -> AsyncIterator[tuple[VolumeCloud, ExportManager]]:
    """A volume service. Its daemon is stopped afterwards."""
    async with volume_cloud(database_url, **flags) as c:
        manager = ExportManager(c.services.config, c.db)
        watching = asyncio.create_task(manager.watch()) if watch else None
        try:
            yield c, manager
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
    """kill -9 the daemon and wait for its end."""
    pid = pid_of(data)
    os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError, FileNotFoundError):
        # The main thread may end before the others.
        while len(os.listdir(f"/proc/{pid}/task")) > 1 or " Z " not in Path(f"/proc/{pid}/stat").read_text():
            os.kill(pid, 0)
    return pid


async def attach(c: VolumeCloud, volume_id: str, server_id: str | None = None, **keys: Any) -> dict[str, Any]:
    """Create a completed attachment with connection info."""
    requested = {"volume_uuid": volume_id, "instance_uuid": server_id or new_id(), "connector": CONNECTOR, **keys}
    response = await c.post("/attachments", {"attachment": requested}, as_="admin")
    assert response.status == 200, response.body
    created: dict[str, Any] = response.json()["attachment"]
    done = await c.post(f"/attachments/{created['id']}/action", {"os-complete": {}}, as_="admin")
    assert done.status == 204, done.body
    return created


def url(connection: dict[str, Any]) -> str:
    return f"nbd://{connection['host']}:{connection['port']}/{connection['export']}"


async def io(connection: dict[str, Any], *commands: str, read_only: bool = False) -> str:
    """The output of a client that runs the commands; starts with "failed" on an error."""
    options = [option for command in commands for option in ("-c", command)]
    process = await asyncio.create_subprocess_exec(
        *("qemu-io", "-f", "raw", *(("-r",) if read_only else ()), *options, url(connection)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await asyncio.wait_for(process.communicate(), SECONDS)
    text = output.decode()
    return f"failed {text}" if process.returncode else text


async def size_of(connection: dict[str, Any]) -> int:
    process = await asyncio.create_subprocess_exec(
        *("qemu-img", "info", "--output=json", url(connection)), stdout=asyncio.subprocess.PIPE
    )
    output, _ = await asyncio.wait_for(process.communicate(), SECONDS)
    return int(orjson.loads(output)["virtual-size"])


class Client:
    """A client that stays connected and waits for the daemon, like a guest."""

    def __init__(self, connection: dict[str, Any], seconds: int = 60) -> None:
        options = {
            "driver": "raw",
            "file.driver": "nbd",
            "file.server.type": "inet",
            "file.server.host": connection["host"],
            "file.server.port": connection["port"],
            "file.export": connection["export"],
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
        # Wait for the connection: before it, the client does not wait for a dead daemon.
        self._send("length")
        assert "iB" in (line := self._line("iB")), line

    async def do(self, command: str, word: str) -> str:
        """Run the command; return the first output line with the word."""
        self._send(command)
        return await asyncio.wait_for(asyncio.to_thread(self._line, word), SECONDS)

    def _send(self, command: str) -> None:
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
def client(connection: dict[str, Any], seconds: int = 60) -> Iterator[Client]:
    found = Client(connection, seconds)
    try:
        yield found
    finally:
        found.process.kill()
        found.process.wait()
