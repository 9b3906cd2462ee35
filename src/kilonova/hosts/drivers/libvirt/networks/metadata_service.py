"""The metadata service at 169.254.169.254: a guest asks who it is, and is known by its network and its address.

Guests are strangers: requests are small, soon, and few at a time, or they are not answered.
"""

from __future__ import annotations

import asyncio
import logging
import urllib.parse
from collections.abc import Callable
from contextlib import suppress

from kilonova.hosts.drivers.libvirt.networks import namespaces
from kilonova.hosts.drivers.libvirt.networks.names import METADATA

log = logging.getLogger(__name__)

PORT = 80
_HEAD_BYTES = 8192
_MOST_UNREAD = 16
_SECONDS = 15.0
_AT_ONCE = 64
_REQUESTS = 100
_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 500: "Internal Server Error"}

# (network id, source address, path) -> the document, or None
Answers = Callable[[str, str, str], bytes | None]


class MetadataService:
    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._servers: dict[str, asyncio.Server] = {}
        self._connections: dict[str, set[asyncio.Task[None]]] = {}

    async def ensure(self, network_id: str, space: str) -> None:
        if network_id in self._servers:
            return
        bound = await namespaces.inside(space, lambda: namespaces.listen(METADATA, PORT))
        connections: set[asyncio.Task[None]] = set()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            try:
                if len(connections) < _AT_ONCE:
                    connections.add(task)
                    await self._serve(network_id, reader, writer)
            finally:
                connections.discard(task)
                writer.close()

        self._connections[network_id] = connections
        self._servers[network_id] = await asyncio.start_server(serve, sock=bound, limit=_HEAD_BYTES)

    async def remove(self, network_id: str) -> None:
        server = self._servers.pop(network_id, None)
        if server is not None:
            server.close()
            for task in self._connections.pop(network_id, set()):
                task.cancel()

    async def close(self) -> None:
        for network_id in list(self._servers):
            await self.remove(network_id)

    async def _serve(self, network_id: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        source = str(writer.get_extra_info("peername", ("",))[0])
        try:
            for _ in range(_REQUESTS):
                async with asyncio.timeout(_SECONDS):
                    head = await reader.readuntil(b"\r\n\r\n")
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
