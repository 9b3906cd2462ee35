"""The connection to libvirt: calls in threads, cancellation, and an unreachable libvirt."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from kilonova import clock
from kilonova.config import Config
from kilonova.hosts.drivers.base import DriverError
from kilonova.hosts.drivers.libvirt.connection import Connection, in_thread, wait_until_done
from kilonova.hosts.drivers.libvirt.embedded import LibvirtHost
from tests.hosts.libvirt.support import FakeImageService


def test_cancellation_waits_for_the_call() -> None:
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


def test_stop_ends_a_long_call() -> None:
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
    await wait_until_done(in_thread(call), stop)  # type: ignore[arg-type]


def test_error_of_a_call_is_raised_in_the_caller() -> None:
    def fail() -> None:
        raise ValueError("no")

    async def go() -> None:
        with pytest.raises(ValueError, match="no"):
            await wait_until_done(in_thread(fail))

    asyncio.run(go())


def test_unreachable_libvirt_is_a_passing_error(tmp_path: Path) -> None:
    pytest.importorskip("libvirt")

    async def go() -> None:
        connection = Connection(f"qemu+unix:///system?socket={tmp_path}/none")
        with pytest.raises(DriverError, match="does not respond") as lost:
            await connection.call(lambda libvirt: libvirt.listAllDomains())
        assert lost.value.passing
        await connection.close()
        with pytest.raises(DriverError, match="closed"):
            await connection.call(lambda libvirt: libvirt.listAllDomains())

    asyncio.run(go())


def test_each_connection_is_asked_once() -> None:
    pytest.importorskip("libvirt")

    async def go() -> None:
        connection = Connection("test:///default")
        begun, go_on = threading.Event(), threading.Event()
        asked: list[str] = []

        def ask(libvirt: Any, question: str) -> str:
            asked.append(question)
            begun.set()
            assert go_on.wait(60)
            return f"{question} {libvirt.getVersion()}"

        waiting = [asyncio.create_task(connection.call_once(ask, "who")) for _ in range(3)]
        await asyncio.to_thread(begun.wait)
        # A caller that gives up does not wait for the answer, and does not lose it for others.
        waiting[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting[0]
        assert not waiting[1].done()
        # However often a libvirt that hangs is asked, it holds up one thread.
        assert [thread.name for thread in threading.enumerate()].count("libvirt call") == 1
        go_on.set()
        assert [await task for task in waiting[1:]] == ["who 2", "who 2"]
        assert await connection.call_once(ask, "who") == "who 2"
        assert await connection.call_once(ask, "what") == "what 2"
        assert asked == ["who", "what"]
        await connection.call(lambda libvirt: libvirt.close())
        assert await connection.call_once(ask, "who") == "who 2"
        assert asked == ["who", "what", "who"]
        await connection.close()

    asyncio.run(go())


def test_error_is_not_cached() -> None:
    pytest.importorskip("libvirt")

    async def go() -> None:
        connection = Connection("test:///default")
        asked: list[int] = []

        def ask(libvirt: Any) -> int:
            asked.append(1)
            if len(asked) == 1:
                libvirt.lookupByName("unknown")
            return len(asked)

        with pytest.raises(DriverError):
            await connection.call_once(ask)
        assert [await connection.call_once(ask) for _ in range(2)] == [2, 2]
        await connection.close()

    asyncio.run(go())


def test_embedded_host_without_reports_is_unreachable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def go() -> None:
        config = Config(data=str(tmp_path))
        config.bridges.enabled = False
        config.libvirt.uri = f"qemu+unix:///system?socket={tmp_path}/none"
        host = LibvirtHost("box", config, FakeImageService(), lambda report: None)
        assert host.unreachable(["box"]) == []
        later = clock.now() + 60
        monkeypatch.setattr(clock, "now", lambda: later)
        assert host.unreachable(["box", "other"]) == ["box"]
        await host.close()

    asyncio.run(go())
