"""A host whose libvirt is slow to list its capabilities: the cloud starts, and says when the host is registered."""

from __future__ import annotations

import asyncio
import threading
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from kilonova import seeds
from kilonova.config import Config, load
from kilonova.hosts import late_hosts
from kilonova.hosts.drivers.libvirt import embedded, facts
from kilonova.process import running

HYPERVISORS = "SELECT host FROM hypervisors"


class SlowLibvirt:
    """Replaces the query for capabilities, which libvirt's test driver does not have, by one that waits."""

    def __init__(self) -> None:
        self.queries = 0
        self.begun, self.answers = threading.Event(), threading.Event()

    def query(self, connection: Any, virt_type: str) -> tuple[int, ET.Element, ET.Element]:
        self.queries += 1
        self.begun.set()
        assert self.answers.wait(60)
        return connection.getVersion(), ET.fromstring(connection.getCapabilities()), ET.Element("domainCapabilities")


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> SlowLibvirt:
    pytest.importorskip("libvirt")

    async def seed_nothing(services: object) -> None:
        """The image takes a minute to build."""

    libvirt = SlowLibvirt()
    monkeypatch.setattr(facts, "_query_libvirt", libvirt.query)
    monkeypatch.setattr(seeds, "seed_tiny_image", seed_nothing)
    monkeypatch.setattr(embedded, "_DESCRIBE_TIMEOUT_SECONDS", 0.05)
    monkeypatch.setattr(late_hosts, "_LATE_SECONDS", 0.05)
    return libvirt


def make_config(directory: Path, uri: str) -> Config:
    flags = {"data": str(directory), "driver": "libvirt", "agent.host": "box", "hosts.report_seconds": 3600.0}
    return load(None, {}, {**flags, "libvirt.uri": uri, "bridges.enabled": False})


async def next_line(lines: asyncio.Queue[str]) -> str:
    async with asyncio.timeout(60):
        return await lines.get()


def test_late_answer_of_libvirt_registers_the_host(tmp_path: Path, slow: SlowLibvirt) -> None:
    async def go() -> None:
        lines = asyncio.Queue[str]()
        async with running(make_config(tmp_path, "test:///default"), print_line=lines.put_nowait) as process:
            reason = "libvirt at test:///default has not listed its capabilities yet"
            assert await next_line(lines) == f"box is not registered yet: {reason}"
            assert slow.begun.is_set()
            assert await process.services.db.fetch(HYPERVISORS) == []
            slow.answers.set()
            assert await next_line(lines) == "box is registered"
            assert await process.services.db.fetch(HYPERVISORS) == [{"host": "box"}]
            assert slow.queries == 1

    asyncio.run(go())


def test_unreachable_libvirt_is_named(tmp_path: Path, slow: SlowLibvirt) -> None:
    async def go() -> None:
        lines = asyncio.Queue[str]()
        uri = f"qemu+unix:///system?socket={tmp_path}/none"
        async with running(make_config(tmp_path, uri), print_line=lines.put_nowait):
            while "does not respond" not in (line := await next_line(lines)):
                pass
        assert line.startswith(f"box is not registered yet: libvirt at {uri} does not respond: ")

    asyncio.run(go())
