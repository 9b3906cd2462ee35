"""Transfers disks between agents over HTTP, and answers questions about live migrations. Server and client.

The two hosts of a move sign their requests with the move's ticket (see `move_tickets`), which is good for this guest
only. With certificates the server speaks HTTPS and requires client certificates.

Requests name guest, slot and file, never a path. A file is sent as its data ranges, so that holes stay holes. A broken
transfer resumes at an offset:

    GET /                                               empty, for anybody: this host can be reached
    GET /slots/<guest>/<slot>                           names and sizes of the disks
    GET /slots/<guest>/<slot>/<file>?from=<offset>      a disk
    GET /slots/<guest>/<slot>/base/<file>?from=<offset> a base image of these disks
    GET /guests/<guest>/base/<file>?from=<offset>       a base image of the guest's disks, for a live migration
    GET /guests/<guest>/disk.config?from=<offset>       the config drive, for a live migration
    GET /guests/<guest>/console.log                     the console log, for a live migration
    GET /expected/<guest>/<slot>                        the prepared destination of a live migration
    GET /arrived/<guest>?log=1                          whether the guest has arrived; the source has a console log
    GET /arrived/<guest>?or=never                       whether the guest has arrived; if not, it is rejected
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import ssl
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

import msgspec
import orjson

from kilonova import certificates, clock
from kilonova.hosts.drivers.base import DriverError, NoSuchSlot
from kilonova.hosts.drivers.libvirt import disks, move_tickets
from kilonova.hosts.drivers.libvirt import layout as names
from kilonova.hosts.drivers.libvirt.connection import in_thread, wait_until_done
from kilonova.hosts.drivers.libvirt.hypervisor import commit_file
from kilonova.hosts.drivers.libvirt.move_tickets import SignatureChecker, StoredTicket

if TYPE_CHECKING:
    from kilonova.config import Agent
    from kilonova.hosts.drivers.libvirt.hypervisor import Hypervisor
    from kilonova.hosts.messages import Image

log = logging.getLogger(__name__)

_CONNECT_TIMEOUT_SECONDS = 10.0
# Between two chunks: a host with a busy disk may be slow.
_READ_TIMEOUT_SECONDS = 60.0
_MAX_HEAD_BYTES = 16384
_CHUNK_BYTES = 4 << 20
_MAX_ATTEMPTS = 3
# Offset and length of a chunk. The last chunk is empty, and its offset is the size of the file.
_CHUNK_HEADER = struct.Struct(">QQ")
_DISK_NAME = re.compile(r"disk[A-Za-z0-9.]*|nvram")
_PORT_FILE = "disks.port"
_STAMP_HEADER, _SIGNATURE_HEADER = "x-kilonova-stamp", "x-kilonova-signature"
# How long after its check a live migration may begin. Afterwards the destination gets nothing more.
_PREPARATION_SECONDS = 3600.0


# The server


async def serve(hv: Hypervisor) -> None:
    """Serve until cancelled. Does nothing without a NATS server, since there are no other hosts then."""
    agent = hv.config.agent
    if not hv.config.messaging.url:
        return
    move_tickets.remove_old(hv)
    context = tls_context(agent, ssl.Purpose.CLIENT_AUTH)
    server = await _listen(hv, _Server(hv), context)
    host, port = server.sockets[0].getsockname()[:2]
    scheme = "https" if context is not None else "http"
    hv.disks_url = f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
    async with server:
        try:
            await server.serve_forever()
        finally:
            hv.disks_url = ""


def tls_context(agent: Agent, purpose: ssl.Purpose) -> ssl.SSLContext | None:
    """The context for mutual TLS, trusting only `agent.ca_file`; None without certificates. Raises DriverError."""
    if not (agent.ca_file or agent.cert_file or agent.key_file):
        return None
    if not (agent.ca_file and agent.cert_file):
        raise DriverError("agent.ca_file and agent.cert_file must be set together: TLS between hosts is mutual")
    try:
        context = certificates.tls_context(purpose, agent.ca_file, agent.cert_file, agent.key_file)
    except certificates.UnusableCertificate as error:
        raise DriverError(f"agent: certificates cannot be read: {error}") from None
    context.verify_mode = ssl.CERT_REQUIRED
    return context


async def _listen(hv: Hypervisor, handler: _Server, context: ssl.SSLContext | None) -> asyncio.Server:
    """Without a configured port, choose a free one and reuse it after restarts, because other hosts know it."""
    agent, remembered = hv.config.agent, hv.config.data_dir / _PORT_FILE

    async def listen(port: int) -> asyncio.Server:
        return await asyncio.start_server(handler.handle, agent.address, port, limit=_MAX_HEAD_BYTES, ssl=context)

    if agent.disk_port:
        return await listen(agent.disk_port)
    with suppress(OSError, ValueError):
        return await listen(int(remembered.read_text()))
    server = await listen(0)
    remembered.write_text(str(server.sockets[0].getsockname()[1]))
    return server


class _HTTPError(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class _Server:
    def __init__(self, hv: Hypervisor) -> None:
        self._hv = hv
        self._signatures = SignatureChecker()

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request and close the connection."""
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
            try:
                await self._serve(writer, self._accept(head))
            except _HTTPError as refusal:
                _write_response(writer, refusal.status, str(refusal).encode())
            except DriverError as error:
                status = 503 if error.passing else 404 if isinstance(error, NoSuchSlot) else 409
                _write_response(writer, status, error.message.encode())
            await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the client closed the connection or sent no request
        except Exception:
            log.exception("a disk transfer request failed")
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    def _accept(self, head: bytes) -> str:
        """Check method and signature of the request and return its target. Raises _HTTPError."""
        lines = head.decode("latin-1").split("\r\n")
        method, _, rest = lines[0].partition(" ")
        target = rest.partition(" ")[0]
        headers = {
            name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])
        }
        if method != "GET":
            raise _HTTPError(405, "only GET is supported")
        if target != "/":
            stamp, signature = headers.get(_STAMP_HEADER, ""), headers.get(_SIGNATURE_HEADER, "")
            if refusal := self._signatures.refusal(self._ticket(target), target, stamp, signature):
                raise _HTTPError(403, refusal)
        return target

    def _ticket(self, target: str) -> StoredTicket | None:
        """The ticket that allows the request; None if nothing does."""
        hv = self._hv
        try:
            match urlsplit(target).path.strip("/").split("/"):
                case ["slots", guest_id, slot, *_]:
                    return move_tickets.find(hv, guest_id, "parked", slot)
                case ["guests", guest_id, *_]:
                    ticket = move_tickets.find(hv, guest_id, "leaving")
                    return ticket if ticket is not None and _is_leaving(hv, guest_id, ticket) else None
                case ["expected", guest_id, slot]:
                    return move_tickets.find(hv, guest_id, "arriving", slot)
                case ["arrived", guest_id]:
                    return move_tickets.find(hv, guest_id, "arriving")
        except (DriverError, ValueError):  # an invalid name, or no URL
            pass
        return None

    async def _serve(self, writer: asyncio.StreamWriter, target: str) -> None:
        from kilonova.hosts.drivers.libvirt import console, migration_records

        hv = self._hv
        url = urlsplit(target)
        query = parse_qs(url.query)
        offset = query.get("from", ["0"])[0]
        match url.path.strip("/").split("/"):
            case [""]:
                _write_response(writer, 200, b"")
            case ["slots", guest_id, slot, "base", name] if name in await _base_names(hv, guest_id, slot):
                await self._send(writer, hv.layout.base / name, offset)
            case ["guests", guest_id, "base", name] if name in await _base_names(hv, guest_id):
                await self._send(writer, hv.layout.base / name, offset)
            case ["guests", guest_id, names.CONFIG_DRIVE]:
                await self._send(writer, hv.layout.guest_directory(guest_id) / names.CONFIG_DRIVE, offset)
            case ["slots", guest_id, slot, name] if _DISK_NAME.fullmatch(name):
                await self._send(writer, hv.layout.slot_directory(guest_id, slot) / name, offset)
            case ["slots", guest_id, slot]:
                _write_response(writer, 200, orjson.dumps(_list_files(hv.layout.slot_directory(guest_id, slot))))
            case ["expected", guest_id, slot]:
                _write_response(
                    writer, 200, msgspec.json.encode(await migration_records.describe_destination(hv, guest_id, slot))
                )
            case ["guests", guest_id, names.CONSOLE_LOG]:
                path = hv.layout.file(guest_id, names.CONSOLE_LOG)
                _write_response(writer, 200, await asyncio.to_thread(console.tail, path, None))
            case ["arrived", guest_id]:
                arrived = await migration_records.has_arrived(hv, guest_id, or_never="or" in query)
                if arrived and "log" in query:
                    await _copy_console_log(hv, guest_id)
                _write_response(writer, 200, orjson.dumps(arrived))
            case _:
                raise _HTTPError(404, f"{url.path} does not exist")

    async def _send(self, writer: asyncio.StreamWriter, path: Path, offset: str) -> None:
        if not offset.isdecimal():
            raise _HTTPError(400, f"from is {offset!r}, not an offset")
        try:
            file = path.open("rb")
        except FileNotFoundError:
            raise _HTTPError(404, f"{path.name} does not exist") from None
        with file:
            _write_response(writer, 200)
            for start, length in _data_ranges(file.fileno(), int(offset)):
                chunk = await wait_until_done(in_thread(os.pread, file.fileno(), length, start))
                writer.write(_CHUNK_HEADER.pack(start, len(chunk)) + chunk)
                await writer.drain()
            writer.write(_CHUNK_HEADER.pack(os.fstat(file.fileno()).st_size, 0))


def _is_leaving(hv: Hypervisor, guest_id: str, ticket: StoredTicket) -> bool:
    """Whether the guest is on its way to the host of the ticket, or this host has just been asked to prepare it."""
    from kilonova.hosts.drivers.libvirt import migration_records

    outgoing = migration_records.find_outgoing(hv, guest_id)
    if outgoing is not None:
        return outgoing.slot == ticket.slot
    return hv.owns(guest_id) and abs(clock.wall() - ticket.stored_at) < _PREPARATION_SECONDS


async def _base_names(hv: Hypervisor, guest_id: str, slot: str = "") -> set[str]:
    """The names of the base images of the guest's disks. Raw disks have none, whatever their guest writes to them."""
    return await asyncio.to_thread(_read_base_names, hv, guest_id, slot)


def _read_base_names(hv: Hypervisor, guest_id: str, slot: str) -> set[str]:
    guest, directory = hv.find_spec(guest_id, slot), hv.layout.directory(guest_id, slot)
    if guest is None:
        return set()
    paths = [directory / file.name for file in disks.disk_files(guest) if file.format == "qcow2"]
    bases = [disks.base_image(path) for path in paths if path.exists()]
    return {base.name for base in bases if base is not None and base.parent == hv.layout.base}


async def _copy_console_log(hv: Hypervisor, guest_id: str) -> None:
    """Store the source's console log like a rotated log file of this host."""
    path, ticket = hv.layout.file(guest_id, f"{names.CONSOLE_LOG}.0"), move_tickets.find(hv, guest_id, "arriving")
    if ticket is not None and not path.exists():
        peer = Peer(hv, ticket.host, ticket.url, ticket.key)
        path.write_bytes(await peer.get(f"/guests/{guest_id}/{names.CONSOLE_LOG}"))


def _write_response(writer: asyncio.StreamWriter, status: int, body: bytes | None = None) -> None:
    """Without a body: write the head only, the body ends with the connection."""
    length = f"Content-Length: {len(body)}\r\n" if body is not None else ""
    writer.write(
        f"HTTP/1.1 {status} {'OK' if status == 200 else 'Refused'}\r\n{length}Connection: close\r\n\r\n".encode()
    )
    if body:
        writer.write(body)


def _data_ranges(descriptor: int, offset: int) -> Iterator[tuple[int, int]]:
    """Offset and length of the file's data from the offset on, in chunks."""
    size = os.fstat(descriptor).st_size
    while offset < size:
        try:
            start = os.lseek(descriptor, offset, os.SEEK_DATA)
        except OSError:  # no data after the offset
            return
        end = os.lseek(descriptor, start, os.SEEK_HOLE)
        for chunk in range(start, end, _CHUNK_BYTES):
            yield chunk, min(_CHUNK_BYTES, end - chunk)
        offset = end


def _list_files(directory: Path) -> dict[str, int]:
    """Names and sizes of the disks."""
    if not (directory / names.SPEC).exists():
        raise _HTTPError(404, "the slot is empty")
    return {path.name: path.stat().st_size for path in directory.iterdir() if _DISK_NAME.fullmatch(path.name)}


# The client


class _Address(NamedTuple):
    host: str
    port: int


class Peer:
    """The agent of the other host of a move. `key` is that of the move's ticket.

    All methods raise DriverError, with `passing` if the agent does not respond.
    """

    def __init__(self, hv: Hypervisor, host: str, url: str, key: str = "") -> None:
        self.host = host
        self._key = key
        if not url:
            raise DriverError(f"{host} reports no URL for disks: its agent is starting, or is too old")
        parts = urlsplit(url)
        self._address = _Address(parts.hostname or "", parts.port or 80)
        self._tls = tls_context(hv.config.agent, ssl.Purpose.SERVER_AUTH)
        if parts.scheme == "https" and self._tls is None:
            raise DriverError(f"{host} requires TLS for disks, but {hv.host} has no certificates: set agent.ca_file")
        if parts.scheme != "https" and self._tls is not None:
            raise DriverError(f"{host} offers disks without TLS, but {hv.host} requires TLS: it has agent.ca_file")

    async def get(self, target: str, seconds: float = _READ_TIMEOUT_SECONDS) -> bytes:
        """The body of a short response."""
        try:
            async with asyncio.timeout(seconds), self._get(target) as reader:
                return await reader.read()
        except (OSError, EOFError, TimeoutError) as error:
            raise self._unreachable(error) from None

    async def get_json(self, target: str, seconds: float = _READ_TIMEOUT_SECONDS) -> Any:
        """The decoded body of a short JSON response."""
        return orjson.loads(await self.get(target, seconds))

    async def download(self, target: str, path: Path) -> None:
        """Download the file completely or not at all. Starts over if an earlier attempt was interrupted."""
        part = path.with_name(path.name + ".part")
        part.unlink(missing_ok=True)
        try:
            await self._download(target, part)
            await wait_until_done(in_thread(commit_file, part, path))
        finally:
            part.unlink(missing_ok=True)

    async def _download(self, target: str, part: Path) -> None:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            done, attempts = 0, 0
            while True:
                try:
                    async with self._get(f"{target}?from={done}") as reader:
                        while True:
                            begin, length = _CHUNK_HEADER.unpack(await _read_exactly(reader, _CHUNK_HEADER.size))
                            if not length:
                                file.truncate(begin)
                                return
                            done = await _receive_chunk(reader, file.fileno(), begin, length)
                            attempts = 0
                except (OSError, EOFError, TimeoutError) as error:
                    attempts += 1
                    if attempts >= _MAX_ATTEMPTS:
                        raise self._unreachable(error) from None
                    await asyncio.sleep(attempts)

    @asynccontextmanager
    async def _get(self, target: str) -> AsyncIterator[asyncio.StreamReader]:
        stamp = move_tickets.new_stamp()
        request = (
            f"GET {target} HTTP/1.1\r\nHost: {self._address.host}\r\nConnection: close\r\n"
            f"{_STAMP_HEADER}: {stamp}\r\n{_SIGNATURE_HEADER}: {move_tickets.sign(self._key, target, stamp)}\r\n\r\n"
        )
        async with asyncio.timeout(_CONNECT_TIMEOUT_SECONDS):
            reader, writer = await asyncio.open_connection(*self._address, limit=_CHUNK_BYTES, ssl=self._tls)
        try:
            writer.write(request.encode())
            async with asyncio.timeout(_READ_TIMEOUT_SECONDS + _CONNECT_TIMEOUT_SECONDS):
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                status = head.split(" ", 2)[1]
                if status != "200":
                    message = (await reader.read(_CHUNK_BYTES)).decode(errors="replace")
                    refusal = PeerHasNoSlot if int(status) == 404 else PeerError
                    raise refusal(self.host, int(status), message)
            yield reader
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    def _unreachable(self, error: BaseException) -> DriverError:
        host, port = self._address
        reason = str(error) or type(error).__name__
        return PeerUnreachable(f"{self.host} does not respond at {host} port {port}: {reason}", passing=True)


class PeerUnreachable(DriverError):
    pass


class PeerError(DriverError):
    """The other host responded with an error."""

    def __init__(self, host: str, status: int, message: str) -> None:
        super().__init__(f"{host}: {message}", passing=status == 503)
        self.status = status


class PeerHasNoSlot(PeerError):
    kind = "no such slot"


async def fetch_base_image(hv: Hypervisor, peer: Peer, disks_target: str, name: str, image: Image | None) -> Path:
    """Return the base image of an arriving guest of `image`, downloaded unless it is in the cache.

    `disks_target`: where the other host has the disks above it.
    """

    async def download(path: Path) -> None:
        await peer.download(f"{disks_target}/base/{name}", path)

    return await hv.images.get_from_peer(image, peer.host, name, download)


async def _read_exactly(reader: asyncio.StreamReader, length: int) -> bytes:
    async with asyncio.timeout(_READ_TIMEOUT_SECONDS):
        return await reader.readexactly(length)


async def _receive_chunk(reader: asyncio.StreamReader, descriptor: int, offset: int, length: int) -> int:
    """Write the next chunk to the file. Returns the offset of its end."""
    if length > _CHUNK_BYTES:
        raise OSError(f"a chunk has {length} bytes, more than {_CHUNK_BYTES}")
    chunk = await _read_exactly(reader, length)
    await wait_until_done(in_thread(_write_at, descriptor, chunk, offset))
    return offset + length


def _write_at(descriptor: int, block: bytes, offset: int) -> None:
    view = memoryview(block)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written
