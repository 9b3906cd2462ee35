"""The VNC display of simulated guests, as a client of the RFB protocol sees it."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kilonova.hosts.drivers.base import DriverError
from kilonova.hosts.drivers.sim import displays
from kilonova.hosts.drivers.sim.driver import SimDriver
from kilonova.hosts.drivers.sim.facts import Hardware
from kilonova.hosts.drivers.sim.rules import Rules
from kilonova.hosts.drivers.sim.store import SimStore
from tests.hosts.support import guest
from tests.support import run

HERE = "sim-001"
TIMEOUT_SECONDS = 60
WIDTH, HEIGHT = 640, 400


@pytest.fixture
def here(tmp_path: Path) -> SimDriver:
    store = SimStore(tmp_path / "sim.db")
    return SimDriver(HERE, {HERE: Hardware()}, store, Rules(store), {})


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def read(self, layout: str) -> tuple[Any, ...]:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            return struct.unpack(layout, await self.reader.readexactly(struct.calcsize(layout)))

    def write(self, layout: str, *values: Any) -> None:
        self.writer.write(struct.pack(layout, *values))

    async def negotiate(self, version: bytes = b"RFB 003.008\n") -> tuple[Any, ...]:
        """Returns width, height, bits per pixel and the name."""
        assert await self.read("12s") == (b"RFB 003.008\n",)
        self.write("12s", version)
        if version < b"RFB 003.007\n":
            assert await self.read(">I") == (1,)
        else:
            assert await self.read(">BB") == (1, 1)
            self.write(">B", 1)
        if version == b"RFB 003.008\n":
            assert await self.read(">I") == (0,)
        self.write(">B", 1)
        width, height, bits, length = await self.read(">HHB15xI")
        (name,) = await self.read(f"{length}s")
        return width, height, bits, name.decode()

    def request_update(self, x: int, y: int, width: int, height: int, *, incremental: bool = False) -> None:
        self.write(">BBHHHH", 3, incremental, x, y, width, height)

    async def read_update(self, bytes_per_pixel: int = 4) -> tuple[int, ...]:
        """Returns the rectangle, whose pixels are grey."""
        kind, count, x, y, width, height, encoding = await self.read(">BxHHHHHi")
        assert (kind, count, encoding) == (0, 1, 0)
        length = width * height * bytes_per_pixel
        assert await self.read(f"{length}s") == (b"\x80" * length,)
        return x, y, width, height

    async def read_end(self) -> None:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            try:
                assert await self.reader.read() == b""
            except ConnectionError:
                pass


@asynccontextmanager
async def client(driver: SimDriver) -> AsyncIterator[Client]:
    connection = await driver.open_display("g", "vnc")
    connection.setblocking(False)
    reader, writer = await asyncio.open_connection(sock=connection)
    try:
        yield Client(reader, writer)
    finally:
        writer.close()


async def kind_of(refused: Awaitable[Any]) -> str:
    with pytest.raises(DriverError) as error:
        await refused
    return error.value.kind


def test_running_and_paused_guests_have_a_vnc_display_only(here: SimDriver) -> None:
    async def scenario() -> None:
        await here.spawn(guest("g"))
        await here.check_display("g", "vnc")
        assert await kind_of(here.check_display("g", "serial")) == "no display"
        assert await kind_of(here.open_display("g", "spice")) == "no display"
        await here.pause("g")
        await here.check_display("g", "vnc")
        await here.power_off("g")
        assert await kind_of(here.open_display("g", "vnc")) == "not running"
        assert await kind_of(here.open_display("missing", "vnc")) == "missing guest"

    run(scenario())


@pytest.mark.parametrize("version", [b"RFB 003.003\n", b"RFB 003.007\n", b"RFB 003.008\n"])
def test_screen_is_shown_in_the_pixel_format_of_the_client(here: SimDriver, version: bytes) -> None:
    async def scenario() -> None:
        await here.spawn(guest("g"))
        async with client(here) as c:
            assert await c.negotiate(version) == (WIDTH, HEIGHT, 32, "g")
            c.request_update(0, 0, WIDTH, HEIGHT)
            assert await c.read_update() == (0, 0, WIDTH, HEIGHT)
            c.write(">Bxxx16s", 0, bytes([8]) + bytes(15))  # pixels of 8 bits
            c.write(">BxHii", 2, 2, 0, 1)  # encodings
            c.write(">BxH", 2, 0)
            c.write(">BBxxI", 4, 1, 0x61)  # a key
            c.write(">BBHH", 5, 0, 1, 1)  # the pointer
            c.write(">BxxxI3s", 6, 3, b"abc")  # the clipboard
            c.write(">BxxxI", 6, 0)
            c.request_update(0, 0, 1, 1, incremental=True)  # unanswered: nothing changes
            c.request_update(630, 390, 100, 100)
            assert await c.read_update(1) == (630, 390, 10, 10)
            c.request_update(1000, 1000, 5, 5)
            assert await c.read_update(1) == (1000, 1000, 0, 0)

    run(scenario())


@pytest.mark.parametrize(
    "message",
    [
        struct.pack(">B", 200),
        struct.pack(">Bxxx16s", 0, bytes([7]) + bytes(15)),
        struct.pack(">BxxxI", 6, 2**32 - 1),
    ],
    ids=["unknown message", "unknown pixel format", "large clipboard"],
)
def test_invalid_message_ends_the_connection(here: SimDriver, message: bytes) -> None:
    async def scenario() -> None:
        await here.spawn(guest("g"))
        async with client(here) as c:
            await c.negotiate()
            c.writer.write(message)
            await c.read_end()

    run(scenario())


def test_client_that_does_not_read_costs_no_memory(here: SimDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    written = 0
    update = displays._update

    def counted(*rectangle: int) -> bytes:
        nonlocal written
        written += 1
        return update(*rectangle)

    monkeypatch.setattr(displays, "_update", counted)

    async def scenario() -> None:
        await here.spawn(guest("g"))
        async with client(here) as c:
            await c.negotiate()
            for _ in range(50):
                c.request_update(0, 0, WIDTH, HEIGHT)
            assert await c.read_update() == (0, 0, WIDTH, HEIGHT)
            assert written <= 3
            for _ in range(49):
                assert await c.read_update() == (0, 0, WIDTH, HEIGHT)

    run(scenario())


@pytest.mark.parametrize("end", ["power_off", "destroy"])
def test_display_ends_with_the_guest(here: SimDriver, end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(displays, "_POWER_CHECK_SECONDS", 0.01)

    async def scenario() -> None:
        await here.spawn(guest("g"))
        async with client(here) as c:
            await c.negotiate()
            await getattr(here, end)("g")
            await c.read_end()

    run(scenario())
