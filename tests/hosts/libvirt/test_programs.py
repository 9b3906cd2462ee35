"""Programs of the host: limits and cancellation."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kilonova.hosts.drivers.base import DriverError
from kilonova.hosts.drivers.libvirt import programs
from tests.hosts.libvirt.support import require_tools


@pytest.fixture(autouse=True)
def _tools() -> None:
    require_tools("prlimit")


def test_missing_program_is_named() -> None:
    with pytest.raises(DriverError, match="no-such-program is not installed"):
        asyncio.run(programs.run("no-such-program"))


def test_memory_and_cpu_limits() -> None:
    script = "import sys; bytearray(1 << 30)"
    with pytest.raises(DriverError, match="MemoryError"):
        asyncio.run(programs.run("python3", "-c", script, memory=1 << 28))
    with pytest.raises(DriverError, match="exit status"):
        asyncio.run(programs.run("python3", "-c", "while True: pass", seconds=1))


def test_cancellation_kills_the_program(tmp_path: Path) -> None:
    mark = tmp_path / "pid"

    async def scenario() -> None:
        script = f"import os, time; open({str(mark)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
        task = asyncio.create_task(programs.run("python3", "-c", script))
        while not (mark.exists() and mark.read_text()):
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not Path(f"/proc/{mark.read_text()}").exists()

    asyncio.run(scenario())
