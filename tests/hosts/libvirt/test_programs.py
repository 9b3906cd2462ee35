"""Programs of the host have limits, and end with who has asked for them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kilonova.hosts.drivers.base import DriverError
from kilonova.hosts.drivers.libvirt import programs
from tests.hosts.libvirt.support import need


@pytest.fixture(autouse=True)
def _tools() -> None:
    need("prlimit", "qemu-img")


def test_a_program_that_is_not_there_is_named() -> None:
    with pytest.raises(DriverError, match="no-such-program is not installed"):
        asyncio.run(programs.run("no-such-program"))


def test_a_program_that_takes_too_much_fails() -> None:
    script = "import sys; bytearray(1 << 30)"
    with pytest.raises(DriverError, match="MemoryError"):
        asyncio.run(programs.run("python3", "-c", script, memory=1 << 28))
    with pytest.raises(DriverError, match="it ended with"):
        asyncio.run(programs.run("python3", "-c", "while True: pass", seconds=1))


def test_what_a_program_said_is_the_reason(tmp_path: Path) -> None:
    with pytest.raises(DriverError, match=r"qemu-img info failed: .*No such file"):
        asyncio.run(programs.info(tmp_path / "nothing", "raw"))


def test_only_whole_paths_are_given_to_qemu() -> None:
    for path in ("disk", "json:{}", "nbd://host/x"):
        with pytest.raises(ValueError, match="absolute"):
            asyncio.run(programs.info(Path(path), "raw"))


def test_a_program_ends_with_who_has_asked_for_it(tmp_path: Path) -> None:
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
