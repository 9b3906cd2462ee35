"""The metadata service at 169.254.169.254: a guest asks who it is, and is known by its network and its address.

Guests are strangers: requests are small, soon, and few at a time, or they are not answered.
"""

from __future__ import annotations

import asyncio
import logging
import re
import urllib.parse
from collections.abc import Callable
from contextlib import suppress

from kilonova.hosts.drivers.libvirt.networks import namespaces
from kilonova.hosts.drivers.libvirt.networks.names import METADATA
from kilonova.hosts.drivers.libvirt.sealed import MOST_BYTES

log = logging.getLogger(__name__)

PORT = 80
_HEAD_BYTES = 8192
_MOST_UNREAD = 16
_SECONDS = 15.0
# Connections of a network, and of one guest, so that none keeps the others out.
_AT_ONCE = 64
_EACH = 16
_REQUESTS = 100
_REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    409: "Conflict",
    413: "Content Too Large",
    500: "Internal Server Error",
}
# The one thing that is taken from guests: a password, encrypted and so a line of letters.
_PASSWORD = re.compile(r"/openstack/[a-z0-9-]+/password/?")
_SEALED = re.compile(rb"[\x21-\x7e]+")

# (network id, source address, path) -> the document, or None
Answers = Callable[[str, str, str], bytes | None]
# (network id, source address, password) -> whether it is kept, or None if nothing is taken from there
Takes = Callable[[str, str, str], bool | None]


class MetadataService:
    def __init__(self, answers: Answers, takes: Takes = lambda *_: None) -> None:
        self._answers = answers
        self._takes = takes
        self._servers: dict[str, asyncio.Server] = {}
        # By network: those under way, and where they come from.
        self._connections: dict[str, dict[asyncio.Task[None], str]] = {}

    async def ensure(self, network_id: str, space: str) -> None:
        if network_id in self._servers:
            return
        bound = await namespaces.inside(space, lambda: namespaces.listen(METADATA, PORT))
        connections: dict[asyncio.Task[None], str] = {}

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            source = _source(writer)
            try:
                if len(connections) < _AT_ONCE and list(connections.values()).count(source) < _EACH:
                    connections[task] = source
                    await self._serve(network_id, reader, writer)
            finally:
                connections.pop(task, None)
                writer.close()

        self._connections[network_id] = connections
        self._servers[network_id] = await asyncio.start_server(serve, sock=bound, limit=_HEAD_BYTES)

    async def remove(self, network_id: str) -> None:
        server = self._servers.pop(network_id, None)
        if server is not None:
            server.close()
            for task in self._connections.pop(network_id, {}):
                task.cancel()

    async def close(self) -> None:
        for network_id in list(self._servers):
            await self.remove(network_id)

    async def _serve(self, network_id: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        source = _source(writer)
        try:
            for _ in range(_REQUESTS):
                async with asyncio.timeout(_SECONDS):
                    head = await reader.readuntil(b"\r\n\r\n")
                    if (length := _posted(head)) is not None:
                        status = await self._take(network_id, source, reader, length)
                        writer.write(_response(status, b"", False))
                        await (writer.drain() if status != 413 else _hear_out(reader))
                        return
                    status, body, keep = self._respond(network_id, source, head)
                    writer.write(body if status < 0 else _response(status, body, keep))
                    await writer.drain()
                if not keep:
                    return
        except asyncio.LimitOverrunError:
            writer.write(_response(400, b"", False))
            await _hear_out(reader)
        except (asyncio.IncompleteReadError, TimeoutError, ConnectionError):
            pass

    async def _take(self, network_id: str, source: str, reader: asyncio.StreamReader, length: int) -> int:
        """The status of the answer to who gives a password away."""
        if length > MOST_BYTES:
            return 413
        password = (await reader.readexactly(length)).strip()
        if not _SEALED.fullmatch(password):
            return 400
        try:
            kept = await asyncio.to_thread(self._takes, network_id, source, password.decode("ascii"))
        except Exception:
            log.exception("the password of a guest could not be kept")
            return 500
        return {True: 200, False: 409, None: 404}[kept]

    def _respond(self, network_id: str, source: str, head: bytes) -> tuple[int, bytes, bool]:
        """Status, body, and whether the connection goes on. Who asks is known by where from, whatever headers say."""
        try:
            lines = head.decode("ascii").split("\r\n")
            method, target, version = lines[0].split(" ")
        except ValueError:
            return 400, b"", False
        headers = {
            name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])
        }
        if version not in ("HTTP/1.0", "HTTP/1.1"):
            return 400, b"", False
        if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
            # Nothing is taken from guests; what they send after the head is not read.
            return (405 if method in ("POST", "PUT") else 400), b"", False
        if method not in ("GET", "HEAD"):
            return 405, b"", False
        keep = version == "HTTP/1.1" and headers.get("connection", "").lower() != "close"
        path = urllib.parse.unquote(target.split("?")[0], errors="replace")
        try:
            found = self._answers(network_id, source, path)
        except Exception:
            log.exception("a guest's question for metadata could not be answered")
            return 500, b"", False
        if method == "HEAD":
            return -1, _response(200 if found is not None else 404, found or b"", keep, with_body=False), keep
        return (404, b"", keep) if found is None else (200, found, keep)


def _source(writer: asyncio.StreamWriter) -> str:
    return str((writer.get_extra_info("peername") or ("",))[0])


def _posted(head: bytes) -> int | None:
    """How many bytes of a password follow; None if it is another question."""
    first, *lines = head.decode("latin-1").split("\r\n")
    method, _, rest = first.partition(" ")
    if method != "POST" or not _PASSWORD.fullmatch(rest.partition(" ")[0]):
        return None
    named = (line.partition(":") for line in lines)
    lengths = [value.strip() for name, _, value in named if name.strip().lower() == "content-length"]
    return int(lengths[0]) if len(lengths) == 1 and re.fullmatch(r"[0-9]{1,9}", lengths[0]) else None


async def _hear_out(reader: asyncio.StreamReader) -> None:
    """For a moment: a connection that is closed with words unread takes the answer with it."""
    with suppress(TimeoutError, ConnectionError):
        async with asyncio.timeout(1.0):
            for _ in range(_MOST_UNREAD):
                if not await reader.read(_HEAD_BYTES):
                    return


def _response(status: int, body: bytes, keep: bool, *, with_body: bool = True) -> bytes:
    kind = "application/json" if body[:1] in (b"{", b"[") else "text/plain; charset=UTF-8"
    head = (
        f"HTTP/1.1 {status} {_REASONS[status]}\r\n"
        f"Content-Type: {kind}\r\n"
        f"Content-Length: {len(body)}\r\n"
        f"Connection: {'keep-alive' if keep else 'close'}\r\n\r\n"
    )
    return head.encode() + (body if with_body else b"")
