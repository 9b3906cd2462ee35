"""The metadata service at 169.254.169.254. It identifies guests by network and source address.

Guests are untrusted, so size, duration and number of requests are limited.
"""

from __future__ import annotations

import asyncio
import logging
import re
import urllib.parse
from collections.abc import Callable
from contextlib import suppress

from kilonova.hosts.drivers.libvirt.encrypted_password import MAX_BYTES
from kilonova.hosts.drivers.libvirt.networks import namespaces
from kilonova.hosts.drivers.libvirt.networks.names import METADATA_ADDRESS

log = logging.getLogger(__name__)

PORT = 80
_MAX_HEAD_BYTES = 8192
_MAX_UNREAD_BLOCKS = 16
_REQUEST_TIMEOUT_SECONDS = 15.0
# Connections of a network and of one guest, so that one guest cannot block the others.
_MAX_CONNECTIONS = 64
_MAX_CONNECTIONS_PER_GUEST = 16
_MAX_REQUESTS = 100
_REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    409: "Conflict",
    413: "Content Too Large",
    500: "Internal Server Error",
}
# Guests may post only their encrypted password: one line of printable characters.
_PASSWORD_PATH = re.compile(r"/openstack/[a-z0-9-]+/password/?")
_ENCRYPTED_PASSWORD = re.compile(rb"[\x21-\x7e]+")

# (network id, source address, path) -> the document, or None
FindDocument = Callable[[str, str, str], bytes | None]
# (network id, source address, password) -> whether it was stored, or None if the source is not a guest
StorePassword = Callable[[str, str, str], bool | None]


class MetadataService:
    def __init__(self, find_document: FindDocument, store_password: StorePassword = lambda *_: None) -> None:
        self._find_document = find_document
        self._store_password = store_password
        self._servers: dict[str, asyncio.Server] = {}
        # By network: the tasks of open connections with their source address.
        self._connections: dict[str, dict[asyncio.Task[None], str]] = {}

    async def ensure(self, network_id: str, namespace: str) -> None:
        if network_id in self._servers:
            return
        bound = await namespaces.run_inside(namespace, lambda: namespaces.listen(METADATA_ADDRESS, PORT))
        connections: dict[asyncio.Task[None], str] = {}

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            source = _source(writer)
            try:
                if (
                    len(connections) < _MAX_CONNECTIONS
                    and list(connections.values()).count(source) < _MAX_CONNECTIONS_PER_GUEST
                ):
                    connections[task] = source
                    await self._serve(network_id, reader, writer)
            finally:
                connections.pop(task, None)
                writer.close()

        self._connections[network_id] = connections
        self._servers[network_id] = await asyncio.start_server(serve, sock=bound, limit=_MAX_HEAD_BYTES)

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
            for _ in range(_MAX_REQUESTS):
                async with asyncio.timeout(_REQUEST_TIMEOUT_SECONDS):
                    head = await reader.readuntil(b"\r\n\r\n")
                    if (length := _password_length(head)) is not None:
                        status = await self._receive_password(network_id, source, reader, length)
                        writer.write(_response(status, b"", False))
                        await (writer.drain() if status != 413 else _drain(reader))
                        return
                    status, body, keep = self._respond(network_id, source, head)
                    writer.write(body if status < 0 else _response(status, body, keep))
                    await writer.drain()
                if not keep:
                    return
        except asyncio.LimitOverrunError:
            writer.write(_response(400, b"", False))
            await _drain(reader)
        except (asyncio.IncompleteReadError, TimeoutError, ConnectionError):
            pass

    async def _receive_password(self, network_id: str, source: str, reader: asyncio.StreamReader, length: int) -> int:
        """Read and store a posted password. Returns the HTTP status."""
        if length > MAX_BYTES:
            return 413
        password = (await reader.readexactly(length)).strip()
        if not _ENCRYPTED_PASSWORD.fullmatch(password):
            return 400
        try:
            stored = await asyncio.to_thread(self._store_password, network_id, source, password.decode("ascii"))
        except Exception:
            log.exception("storing the password of a guest failed")
            return 500
        return {True: 200, False: 409, None: 404}[stored]

    def _respond(self, network_id: str, source: str, head: bytes) -> tuple[int, bytes, bool]:
        """Status, body, and whether to keep the connection open. Headers do not identify the guest, the source does."""
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
            # Request bodies are not read.
            return (405 if method in ("POST", "PUT") else 400), b"", False
        if method not in ("GET", "HEAD"):
            return 405, b"", False
        keep = version == "HTTP/1.1" and headers.get("connection", "").lower() != "close"
        path = urllib.parse.unquote(target.split("?")[0], errors="replace")
        try:
            found = self._find_document(network_id, source, path)
        except Exception:
            log.exception("a metadata request failed")
            return 500, b"", False
        if method == "HEAD":
            return -1, _response(200 if found is not None else 404, found or b"", keep, with_body=False), keep
        return (404, b"", keep) if found is None else (200, found, keep)


def _source(writer: asyncio.StreamWriter) -> str:
    return str((writer.get_extra_info("peername") or ("",))[0])


def _password_length(head: bytes) -> int | None:
    """The length of the posted password; None for other requests."""
    first, *lines = head.decode("latin-1").split("\r\n")
    method, _, rest = first.partition(" ")
    if method != "POST" or not _PASSWORD_PATH.fullmatch(rest.partition(" ")[0]):
        return None
    headers = (line.partition(":") for line in lines)
    lengths = [value.strip() for name, _, value in headers if name.strip().lower() == "content-length"]
    return int(lengths[0]) if len(lengths) == 1 and re.fullmatch(r"[0-9]{1,9}", lengths[0]) else None


async def _drain(reader: asyncio.StreamReader) -> None:
    """Read the rest of the request: closing a connection with unread data would discard the response."""
    with suppress(TimeoutError, ConnectionError):
        async with asyncio.timeout(1.0):
            for _ in range(_MAX_UNREAD_BLOCKS):
                if not await reader.read(_MAX_HEAD_BYTES):
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
