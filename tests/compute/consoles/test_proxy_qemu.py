"""The display of a real QEMU through the proxy, up to the first picture."""

from __future__ import annotations

import asyncio
import os
import shutil
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from websockets.asyncio.client import ClientConnection, connect

from tests.compute.consoles.support import GREETING, console_url, fake_displays, served, websocket_url
from tests.support import run
from tests.support.full_cloud import TIMEOUT_SECONDS
from tests.support.ports import free_port

QEMU = "qemu-system-x86_64"
FIRST_PORT = 5900
# RFB security type and encoding.
NO_AUTHENTICATION, RAW = 1, 0


@pytest.fixture
def qemu() -> str:
    found = shutil.which(QEMU)
    if found is None:
        if os.environ.get("KILONOVA_REQUIRE_ALL") == "1":
            pytest.fail(f"{QEMU} is not installed, and KILONOVA_REQUIRE_ALL=1")
        pytest.skip(f"{QEMU} is not installed")
    return found


@asynccontextmanager
async def qemu_display(qemu: str) -> AsyncIterator[int]:
    """Run a QEMU without disks and with stopped CPUs."""
    port = free_port()
    arguments = ["-nodefaults", "-machine", "pc,accel=tcg", "-m", "16", "-vga", "std", "-S"]
    shown = ["-display", "none", "-vnc", f"127.0.0.1:{port - FIRST_PORT}"]
    process = await asyncio.create_subprocess_exec(qemu, *arguments, *shown)
    try:
        yield port
    finally:
        process.kill()
        await process.wait()


async def read(socket: ClientConnection, size: int, kept: bytearray) -> bytes:
    """Read `size` bytes from any number of messages. `kept` holds the surplus."""
    while len(kept) < size:
        data = await socket.recv()
        assert isinstance(data, bytes)
        kept += data
    found = bytes(kept[:size])
    del kept[:size]
    return found


def test_qemu_display_sends_picture(sqlite_url: str, qemu: str) -> None:
    async def scenario() -> None:
        async with served(sqlite_url) as (c, base), qemu_display(qemu) as port:
            with fake_displays(vnc=port):
                url = websocket_url(await console_url(c, (await c.boot_active())["id"], base))
                async with asyncio.timeout(TIMEOUT_SECONDS):
                    socket = await connect_retrying(url)
                    width, height, size = await read_picture(socket)
                    assert (width, height) >= (640, 400)
                    assert size >= width * height
                await socket.close()

    run(scenario())


async def connect_retrying(url: str) -> ClientConnection:
    """Connect as soon as QEMU listens."""
    while True:
        try:
            return await connect(url, subprotocols=["binary"], compression=None, proxy=None)  # type: ignore[list-item]
        except Exception:
            await asyncio.sleep(0.05)


async def read_picture(socket: ClientConnection) -> tuple[int, int, int]:
    """Perform the RFB handshake. Return width, height and size of the first picture."""
    kept = bytearray()
    assert await read(socket, len(GREETING), kept) == GREETING
    await socket.send(GREETING)
    (count,) = await read(socket, 1, kept)
    assert NO_AUTHENTICATION in await read(socket, count, kept)
    await socket.send(bytes([NO_AUTHENTICATION]))
    assert await read(socket, 4, kept) == bytes(4)
    await socket.send(b"\x01")  # shared access
    head = await read(socket, 24, kept)
    width, height = struct.unpack(">HH", head[:4])
    depth = head[4] // 8
    (length,) = struct.unpack(">I", head[20:])
    assert b"QEMU" in await read(socket, length, kept)
    await socket.send(struct.pack(">BxHi", 2, 1, RAW))
    await socket.send(struct.pack(">BBHHHH", 3, 0, 0, 0, width, height))
    kind, rectangles = struct.unpack(">BxH", await read(socket, 4, kept))
    assert (kind, rectangles > 0) == (0, True)
    *_, wide, high, encoding = struct.unpack(">HHHHi", await read(socket, 12, kept))
    assert encoding == RAW
    return width, height, len(await read(socket, wide * high * depth, kept))
