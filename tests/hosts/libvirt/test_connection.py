"""Calls in threads: a cancellation waits for them, and a libvirt that does not answer is a trouble that may pass."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from kilonova import clock
from kilonova.config import Config
from kilonova.hosts.drivers.base import DriverError
from kilonova.hosts.drivers.libvirt.connection import Connection, finished, in_thread
from kilonova.hosts.drivers.libvirt.embedded import LibvirtHost
from tests.hosts.libvirt.support import Shelf


def test_a_cancellation_comes_out_when_the_call_has_ended() -> None:
    async def go() -> None:
        begun, go_on = threading.Event(), threading.Event()
        done: list[str] = []

        def call() -> None:
            begun.set()
            go_on.wait(60)
            done.append("call")

        task = asyncio.create_task(_wait(call))
        await asyncio.to_thread(begun.wait)
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0.02)
        assert not task.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert done == ["call"]

    asyncio.run(go())


def test_a_long_call_can_be_told_to_end() -> None:
    async def go() -> None:
        begun, stopped = threading.Event(), threading.Event()

        def call() -> None:
            begun.set()
            assert stopped.wait(60)

        task = asyncio.create_task(_wait(call, stopped.set))
        await asyncio.to_thread(begun.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert stopped.is_set()

    asyncio.run(go())


async def _wait(call: object, stop: object = None) -> None:
    await finished(in_thread(call), stop)  # type: ignore[arg-type]


def test_an_error_of_the_call_is_the_callers() -> None:
    def fail() -> None:
        raise ValueError("no")

    async def go() -> None:
        with pytest.raises(ValueError, match="no"):
            await finished(in_thread(fail))

    asyncio.run(go())


def test_nobody_answers(tmp_path: Path) -> None:
    pytest.importorskip("libvirt")

    async def go() -> None:
        connection = Connection(f"qemu+unix:///system?socket={tmp_path}/none")
        with pytest.raises(DriverError, match="does not answer") as lost:
            await connection.ask(lambda opened: opened.listAllDomains())
        assert lost.value.passing
        await connection.close()
        with pytest.raises(DriverError, match="closed"):
            await connection.ask(lambda opened: opened.listAllDomains())

    asyncio.run(go())


def test_a_machine_whose_libvirt_is_gone_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def go() -> None:
        config = Config(data=str(tmp_path))
        config.bridges.enabled = False
        config.libvirt.uri = f"qemu+unix:///system?socket={tmp_path}/none"
        host = LibvirtHost("box", config, Shelf(), lambda report: None)
        assert host.silent(["box"]) == []
        later = clock.now() + 60
        monkeypatch.setattr(clock, "now", lambda: later)
        assert host.silent(["box", "other"]) == ["box"]
        await host.close()

    asyncio.run(go())
