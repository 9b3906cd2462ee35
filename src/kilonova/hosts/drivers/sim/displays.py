"""The VNC display of simulated guests: a grey screen that speaks the RFB protocol and ignores keys and pointer."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Generator
from typing import cast

from kilonova.hosts.drivers.base import MissingDisplay, NotRunning
from kilonova.hosts.messages import GuestState

_VNC = "vnc"
_WIDTH, _HEIGHT = 640, 400
# A byte that means the same in any pixel format: medium grey.
_GREY = b"\x80"
# 32 bits per pixel, depth 24, little-endian, true colour, 8 bits per colour.
_PIXEL_FORMAT = struct.pack(">BBBBHHHBBBxxx", 32, 24, 0, 1, 255, 255, 255, 16, 8, 0)
_BYTES_PER_PIXEL = {8: 1, 16: 2, 32: 4}
_NO_AUTHENTICATION = 1
_RAW = 0
_MAX_CLIPBOARD_BYTES = 65536
_POWER_CHECK_SECONDS = 1.0

# Yields the number of bytes that it waits for, and receives them.
Conversation = Generator[int, bytes, None]


def check(guest: GuestState, kind: str) -> None:
    """Raises MissingDisplay, or NotRunning."""
    if kind != _VNC:
        raise MissingDisplay(f"simulated guests have no {kind} console, only VNC")
    if not _is_on(guest):
        raise NotRunning(guest.id)


async def connect(find_guest: Callable[[], GuestState | None]) -> socket.socket:
    """Return a socket that is connected to the guest's screen. The screen closes it when the guest stops."""
    guest_end, client_end = socket.socketpair()
    guest_end.setblocking(False)
    await asyncio.get_running_loop().connect_accepted_socket(lambda: _Screen(find_guest), guest_end)
    return client_end


class _Screen(asyncio.Protocol):
    """Runs the conversation with one client. While the client does not read, its messages wait."""

    def __init__(self, find_guest: Callable[[], GuestState | None]) -> None:
        self._find_guest = find_guest
        self._received = bytearray()
        self._is_paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        guest = self._find_guest()
        self._conversation = _converse(guest.id if guest is not None else "", self._transport.write)
        self._wanted = next(self._conversation)
        self._check_power()

    def connection_lost(self, exc: Exception | None) -> None:
        self._power_check.cancel()
        self._conversation.close()

    def data_received(self, data: bytes) -> None:
        self._received += data
        self._continue()

    def pause_writing(self) -> None:
        self._is_paused = True
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._is_paused = False
        self._transport.resume_reading()
        self._continue()

    def _continue(self) -> None:
        while len(self._received) >= self._wanted and not self._is_paused and not self._transport.is_closing():
            message = bytes(self._received[: self._wanted])
            del self._received[: self._wanted]
            try:
                self._wanted = self._conversation.send(message)
            except StopIteration:
                self._transport.close()

    def _check_power(self) -> None:
        guest = self._find_guest()
        if guest is None or not _is_on(guest):
            self._transport.abort()
        self._power_check = asyncio.get_running_loop().call_later(_POWER_CHECK_SECONDS, self._check_power)


def _is_on(guest: GuestState) -> bool:
    return guest.power in ("running", "paused")


def _converse(name: str, write: Callable[[bytes], None]) -> Conversation:
    """Speak RFB 3.3, 3.7 or 3.8 (RFC 6143) until the client sends a message that is not valid."""
    write(b"RFB 003.008\n")
    version = yield 12
    if version < b"RFB 003.007":
        write(struct.pack(">I", _NO_AUTHENTICATION))
    else:
        write(bytes([1, _NO_AUTHENTICATION]))
        if (yield 1)[0] != _NO_AUTHENTICATION:
            return
        if version >= b"RFB 003.008":
            write(struct.pack(">I", 0))
    yield 1  # whether the client shares the screen
    write(struct.pack(">HH16sI", _WIDTH, _HEIGHT, _PIXEL_FORMAT, len(name)) + name.encode())
    bytes_per_pixel = 4
    while True:
        kind = (yield 1)[0]
        if kind == 0:  # SetPixelFormat
            found = _BYTES_PER_PIXEL.get((yield 19)[3])
            if found is None:
                return
            bytes_per_pixel = found
        elif kind == 2:  # SetEncodings. All clients support raw pixels.
            (count,) = struct.unpack(">xH", (yield 3))
            if count:
                yield 4 * count
        elif kind == 3:  # FramebufferUpdateRequest
            incremental, x, y, width, height = struct.unpack(">BHHHH", (yield 9))
            if not incremental:  # the screen never changes
                write(_update(x, y, min(width, max(0, _WIDTH - x)), min(height, max(0, _HEIGHT - y)), bytes_per_pixel))
        elif kind == 4:  # KeyEvent
            yield 7
        elif kind == 5:  # PointerEvent
            yield 5
        elif kind == 6:  # ClientCutText
            (length,) = struct.unpack(">xxxI", (yield 7))
            if length > _MAX_CLIPBOARD_BYTES:
                return
            if length:
                yield length
        else:
            return


def _update(x: int, y: int, width: int, height: int, bytes_per_pixel: int) -> bytes:
    pixels = _GREY * (width * height * bytes_per_pixel)
    return struct.pack(">BxHHHHHi", 0, 1, x, y, width, height, _RAW) + pixels
