"""Sessions with guests' displays, through an agent."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kilonova.hosts import display_sessions, messages
from kilonova.hosts.agent import Agent
from kilonova.hosts.journal import Journal
from kilonova.hosts.messages import Command
from kilonova.hosts.messages.verbs import CloseDisplay, OpenDisplay, ReadDisplay, WriteDisplay
from kilonova.hosts.transport import HostRefused, InProcess, NoDisplay
from tests.hosts.support import HOST
from tests.support import run


class Driver:
    """Gives each session one end of a pair of sockets, and keeps the other end as the guest."""

    def __init__(self) -> None:
        self.guests: list[socket.socket] = []

    async def open_display(self, guest_id: str, kind: str) -> socket.socket:
        guest, session = socket.socketpair()
        guest.setblocking(False)
        self.guests.append(guest)
        return session


class Host:
    def __init__(self, agent: Agent, driver: Driver) -> None:
        self.driver = driver
        self._transport = InProcess(lambda host: agent)

    async def call(self, verb: Any) -> Any:
        return await self._transport.call(HOST, Command(host=HOST, verb=verb))

    async def open(self, guest_id: str = "one") -> tuple[str, socket.socket]:
        session_id = await self.call(OpenDisplay(guest_id=guest_id, kind="vnc"))
        return session_id, self.driver.guests[-1]


@asynccontextmanager
async def host(directory: Path) -> AsyncIterator[Host]:
    driver, journal = Driver(), Journal(directory / "journal.db")
    agent = Agent(HOST, driver, journal)  # type: ignore[arg-type]
    try:
        yield Host(agent, driver)
    finally:
        agent.close()
        journal.close()
        for guest in driver.guests:
            guest.close()


async def receive(guest: socket.socket) -> bytes:
    async with asyncio.timeout(60):
        return await asyncio.get_running_loop().sock_recv(guest, 65536)


def test_bytes_are_carried_both_ways(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with host(tmp_path) as h:
            session_id, guest = await h.open()
            other_id, other = await h.open()
            reading = asyncio.create_task(h.call(ReadDisplay(session_id=session_id)))
            other.send(b"other")
            guest.send(b"\x00\xffpicture")
            assert await reading == b"\x00\xffpicture"
            assert await h.call(ReadDisplay(session_id=other_id)) == b"other"
            await h.call(WriteDisplay(session_id=session_id, data=b"key \x00"))
            assert await receive(guest) == b"key \x00"

    run(scenario())


def test_read_without_data_returns_no_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(display_sessions, "READ_WAIT_SECONDS", 0.01)

    async def scenario() -> None:
        async with host(tmp_path) as h:
            session_id, guest = await h.open()
            assert await h.call(ReadDisplay(session_id=session_id)) == b""
            guest.send(b"late")
            assert await h.call(ReadDisplay(session_id=session_id)) == b"late"

    run(scenario())


def test_session_ends_with_the_display(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with host(tmp_path) as h:
            session_id, guest = await h.open()
            guest.send(b"last")
            guest.close()
            assert await h.call(ReadDisplay(session_id=session_id)) == b"last"
            assert await h.call(ReadDisplay(session_id=session_id)) is None
            with pytest.raises(NoDisplay):
                await h.call(WriteDisplay(session_id=session_id, data=b"x"))

    run(scenario())


def test_close_ends_a_read_and_the_connection(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with host(tmp_path) as h:
            session_id, guest = await h.open()
            reading = asyncio.create_task(h.call(ReadDisplay(session_id=session_id)))
            await asyncio.sleep(0)
            await h.call(CloseDisplay(session_id=session_id))
            assert await reading is None
            assert await receive(guest) == b""
            await h.call(CloseDisplay(session_id=session_id))
            assert await h.call(ReadDisplay(session_id=session_id)) is None

    run(scenario())


def test_session_that_is_not_read_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(display_sessions, "IDLE_TIMEOUT_SECONDS", 0.01)

    async def scenario() -> None:
        async with host(tmp_path) as h:
            session_id, guest = await h.open()
            assert await receive(guest) == b""
            assert await h.call(ReadDisplay(session_id=session_id)) is None

    run(scenario())


def test_sessions_of_one_guest_are_limited(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with host(tmp_path) as h:
            session_id, _ = await h.open()
            for _ in range(display_sessions.MAX_SESSIONS_PER_GUEST - 1):
                await h.open()
            with pytest.raises(HostRefused, match="which is the limit"):
                await h.open()
            await h.open("another")
            await h.call(CloseDisplay(session_id=session_id))
            await h.open()

    run(scenario())


def test_session_id_of_another_host_is_worthless(tmp_path: Path) -> None:
    async def scenario() -> None:
        (tmp_path / "other").mkdir()
        async with host(tmp_path) as one, host(tmp_path / "other") as two:
            session_id, guest = await one.open()
            guest.send(b"secret")
            assert await two.call(ReadDisplay(session_id=session_id)) is None
            assert await one.call(ReadDisplay(session_id=session_id)) == b"secret"

    run(scenario())


def test_data_survives_the_encoding() -> None:
    command = Command(host=HOST, verb=WriteDisplay(session_id="s", data=bytes(range(256))))
    decoded = messages.decode_command(messages.encode(command))
    assert decoded.verb == command.verb
