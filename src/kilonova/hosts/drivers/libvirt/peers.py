"""Disks on their way between hosts: each agent gives them to agents that know the same secret, by HTTP.

With certificates it is HTTPS, and an agent without one gets no answer.

What is asked for is named by guest, slot and file, never by a path. A request is signed and good for minutes. Files go
as their pieces that hold data, so that holes stay holes, and one that broke off goes on where it was:

    GET /base/<file>?from=<offset>
    GET /slots/<guest>/<slot>/<file>?from=<offset>
    GET /slots/<guest>/<slot>                           which files there are
    GET /guests/<guest>/disk.config?from=<offset>       of a guest that is to come over while it runs
    GET /expected/<guest>/<slot>                        the domain that such a guest becomes here
    GET /guests/<guest>/console.log                     what it has written
    GET /arrived/<guest>?from=<url>                     whether it has come, from an agent that has its console log
    GET /arrived/<guest>?or=never                       whether it has come; if not, it does not any more
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
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
from kilonova.hosts.drivers.base import DriverError
from kilonova.hosts.drivers.libvirt import formats
from kilonova.hosts.drivers.libvirt import layout as names
from kilonova.hosts.drivers.libvirt.connection import finished, in_thread
from kilonova.hosts.drivers.libvirt.hypervisor import settle

if TYPE_CHECKING:
    from kilonova.config import Agent
    from kilonova.hosts.drivers.libvirt.hypervisor import Hypervisor

log = logging.getLogger(__name__)

_GOOD_FOR = 300.0
_CONNECT_SECONDS = 10.0
# Between two pieces; a host whose disk is busy may take a while.
_SILENCE_SECONDS = 60.0
_LONGEST_HEAD = 16384
_PIECE = 4 << 20
_TRIES = 3
# Where a piece begins and how long it is; the last one is empty and says how long the file is.
_FRAME = struct.Struct(">QQ")
_DISK = re.compile(r"disk[A-Za-z0-9.]*|nvram")
_PORT = "disks.port"
_TIME, _SIGNATURE = "x-kilonova-time", "x-kilonova-signature"


def signature(secret: str, target: str, time: str) -> str:
    return hmac.new(secret.encode(), f"GET\n{target}\n{time}".encode(), hashlib.sha256).hexdigest()


# The server


async def serve(hv: Hypervisor) -> None:
    """Until cancelled. Without a secret nobody is served."""
    agent = hv.config.agent
    if not agent.disk_secret:
        return
    context = tls(agent, ssl.Purpose.CLIENT_AUTH)
    server = await _listen(hv, _Server(hv), context)
    host, port = server.sockets[0].getsockname()[:2]
    scheme = "https" if context is not None else "http"
    hv.disks_url = f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
    async with server:
        try:
            await server.serve_forever()
        finally:
            hv.disks_url = ""


def tls(agent: Agent, purpose: ssl.Purpose) -> ssl.SSLContext | None:
    """What the agent proves who it is by, and knows others by; None without certificates. Raises DriverError.

    `purpose` is whom it speaks to. Only the named authority counts, for servers too.
    """
    if not (agent.ca_file or agent.cert_file or agent.key_file):
        return None
    if not (agent.ca_file and agent.cert_file):
        raise DriverError("agent.ca_file and agent.cert_file go together: both hosts prove who they are")
    try:
        context = certificates.context(purpose, agent.ca_file, agent.cert_file, agent.key_file)
    except certificates.Unusable as error:
        raise DriverError(f"agent: certificates cannot be read: {error}") from None
    context.verify_mode = ssl.CERT_REQUIRED
    return context


async def _listen(hv: Hypervisor, served: _Server, context: ssl.SSLContext | None) -> asyncio.Server:
    """Where no port is configured one that is free is taken, and the next time again: others remember it."""
    agent, remembered = hv.config.agent, hv.config.data_dir / _PORT

    async def listen(port: int) -> asyncio.Server:
        return await asyncio.start_server(served.answer, agent.address, port, limit=_LONGEST_HEAD, ssl=context)

    if agent.disk_port:
        return await listen(agent.disk_port)
    with suppress(OSError, ValueError):
        return await listen(int(remembered.read_text()))
    server = await listen(0)
    remembered.write_text(str(server.sockets[0].getsockname()[1]))
    return server


class _Refused(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class _Server:
    def __init__(self, hv: Hypervisor) -> None:
        self._hv = hv

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request per connection."""
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
            try:
                await self._serve(writer, self._target(head))
            except _Refused as refusal:
                _begin(writer, refusal.status, str(refusal).encode())
            except DriverError as error:
                _begin(
                    writer,
                    503 if error.passing else 404 if error.kind == "no such slot" else 409,
                    error.message.encode(),
                )
            await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # whoever asked is gone, or has asked nothing
        except Exception:
            log.exception("a request of another host failed")
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    def _target(self, head: bytes) -> str:
        """What is asked for, by somebody who may."""
        lines = head.decode("latin-1").split("\r\n")
        method, _, rest = lines[0].partition(" ")
        target = rest.partition(" ")[0]
        headers = {
            name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])
        }
        time, given = headers.get(_TIME, ""), headers.get(_SIGNATURE, "")
        expected = signature(self._hv.config.agent.disk_secret, target, time)
        if not hmac.compare_digest(expected.encode(), given.encode()):
            raise _Refused(403, "the signature is not that of the secret which this host has")
        try:
            age = abs(clock.now() - float(time))
        except ValueError:
            age = _GOOD_FOR + 1
        if not age <= _GOOD_FOR:
            raise _Refused(403, "the request is too old, or the clocks of the hosts differ")
        if method != "GET":
            raise _Refused(405, "only GET")
        return target

    async def _serve(self, writer: asyncio.StreamWriter, target: str) -> None:
        from kilonova.hosts.drivers.libvirt import arrivals, console

        hv = self._hv
        url = urlsplit(target)
        asked = parse_qs(url.query)
        offset = asked.get("from", ["0"])[0]
        match url.path.strip("/").split("/"):
            case ["base", name] if _is_name(name):
                await self._send(writer, hv.layout.base / name, offset)
            case ["guests", guest_id, names.CONFIG_DRIVE]:
                await self._send(writer, hv.layout.guest(guest_id) / names.CONFIG_DRIVE, offset)
            case ["slots", guest_id, slot, name] if _DISK.fullmatch(name):
                await self._send(writer, hv.layout.slot(guest_id, slot) / name, offset)
            case ["slots", guest_id, slot]:
                _begin(writer, 200, orjson.dumps(_files(hv.layout.slot(guest_id, slot))))
            case ["expected", guest_id, slot]:
                _begin(writer, 200, msgspec.json.encode(await arrivals.expected(hv, guest_id, slot)))
            case ["guests", guest_id, names.CONSOLE]:
                _begin(
                    writer, 200, await asyncio.to_thread(console.tail, hv.layout.file(guest_id, names.CONSOLE), None)
                )
            case ["arrived", guest_id]:
                arrived = await arrivals.has_arrived(hv, guest_id, or_never="or" in asked)
                if arrived and asked.get("from"):
                    await _carry_console(hv, guest_id, asked["from"][0])
                _begin(writer, 200, orjson.dumps(arrived))
            case _:
                raise _Refused(404, "there is no such thing")

    async def _send(self, writer: asyncio.StreamWriter, path: Path, offset: str) -> None:
        if not offset.isdecimal():
            raise _Refused(400, f"{offset!r} is no offset")
        try:
            file = path.open("rb")
        except FileNotFoundError:
            raise _Refused(404, f"{path.name} is not here") from None
        with file:
            _begin(writer, 200)
            for start, length in _pieces(file.fileno(), int(offset)):
                piece = await finished(in_thread(os.pread, file.fileno(), length, start))
                writer.write(_FRAME.pack(start, len(piece)) + piece)
                await writer.drain()
            writer.write(_FRAME.pack(os.fstat(file.fileno()).st_size, 0))


async def _carry_console(hv: Hypervisor, guest_id: str, source: str) -> None:
    """What the guest has written where it was, as if its log here had been cut there."""
    path = hv.layout.file(guest_id, f"{names.CONSOLE}.0")
    if not path.exists():
        content = await Peer(hv, "the source", source).ask(f"/guests/{guest_id}/{names.CONSOLE}")
        path.write_bytes(content)


def _begin(writer: asyncio.StreamWriter, status: int, body: bytes | None = None) -> None:
    """Without a body one follows, to the end of the connection."""
    length = f"Content-Length: {len(body)}\r\n" if body is not None else ""
    writer.write(
        f"HTTP/1.1 {status} {'OK' if status == 200 else 'Refused'}\r\n{length}Connection: close\r\n\r\n".encode()
    )
    if body:
        writer.write(body)


def _is_name(name: str) -> bool:
    return re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", name) is not None


def _pieces(descriptor: int, offset: int) -> Iterator[tuple[int, int]]:
    """Where the file has data, from there on."""
    size = os.fstat(descriptor).st_size
    while offset < size:
        try:
            start = os.lseek(descriptor, offset, os.SEEK_DATA)
        except OSError:  # there is none any more
            return
        end = os.lseek(descriptor, start, os.SEEK_HOLE)
        for at in range(start, end, _PIECE):
            yield at, min(_PIECE, end - at)
        offset = end


def _files(directory: Path) -> dict[str, int]:
    """Names and sizes."""
    if not (directory / names.SPEC).exists():
        raise _Refused(404, "nothing is kept in this slot")
    return {path.name: path.stat().st_size for path in directory.iterdir() if _DISK.fullmatch(path.name)}


# The client


class _Place(NamedTuple):
    host: str
    port: int


class Peer:
    """Another host's agent. Everything raises DriverError; `passing` where it does not answer."""

    def __init__(self, hv: Hypervisor, host: str, url: str) -> None:
        self.host = host
        self._secret = hv.config.agent.disk_secret
        if not url:
            raise DriverError(
                f"{host} does not say where it gives disks away: its agent has no disk_secret, or is older"
            )
        if not self._secret:
            raise DriverError(f"{hv.host} cannot ask {host} for disks: agent.disk_secret is not configured")
        parts = urlsplit(url)
        self._place = _Place(parts.hostname or "", parts.port or 80)
        self._tls = tls(hv.config.agent, ssl.Purpose.SERVER_AUTH)
        if parts.scheme == "https" and self._tls is None:
            raise DriverError(
                f"{host} gives disks by TLS alone, for which {hv.host} has no certificates: agent.ca_file"
            )
        if parts.scheme != "https" and self._tls is not None:
            raise DriverError(f"{host} gives disks without TLS, which {hv.host} does not take: it has agent.ca_file")

    async def ask(self, target: str, seconds: float = _SILENCE_SECONDS) -> bytes:
        """A short answer."""
        try:
            async with asyncio.timeout(seconds), self._get(target) as reader:
                return await reader.read()
        except (OSError, EOFError, TimeoutError) as trouble:
            raise self._unreachable(trouble) from None

    async def find(self, target: str, seconds: float = _SILENCE_SECONDS) -> Any:
        """A short answer as JSON."""
        return orjson.loads(await self.ask(target, seconds))

    async def fetch(self, target: str, path: Path) -> None:
        """The file is there, whole, or not at all. What an earlier try has fetched is fetched again."""
        part = path.with_name(path.name + ".part")
        part.unlink(missing_ok=True)
        try:
            await self._fetch(target, part)
            await finished(in_thread(settle, part, path))
        finally:
            part.unlink(missing_ok=True)

    async def _fetch(self, target: str, part: Path) -> None:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            done, tries = 0, 0
            while True:
                try:
                    async with self._get(f"{target}?from={done}") as reader:
                        while True:
                            begin, length = _FRAME.unpack(await _exactly(reader, _FRAME.size))
                            if not length:
                                file.truncate(begin)
                                return
                            done = await _take(reader, file.fileno(), begin, length)
                            tries = 0
                except (OSError, EOFError, TimeoutError) as trouble:
                    tries += 1
                    if tries >= _TRIES:
                        raise self._unreachable(trouble) from None
                    await asyncio.sleep(tries)

    @asynccontextmanager
    async def _get(self, target: str) -> AsyncIterator[asyncio.StreamReader]:
        time = f"{clock.now():.3f}"
        request = (
            f"GET {target} HTTP/1.1\r\nHost: {self._place.host}\r\nConnection: close\r\n"
            f"{_TIME}: {time}\r\n{_SIGNATURE}: {signature(self._secret, target, time)}\r\n\r\n"
        )
        async with asyncio.timeout(_CONNECT_SECONDS):
            reader, writer = await asyncio.open_connection(*self._place, limit=_PIECE, ssl=self._tls)
        try:
            writer.write(request.encode())
            async with asyncio.timeout(_SILENCE_SECONDS + _CONNECT_SECONDS):
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                status = head.split(" ", 2)[1]
                if status != "200":
                    said = (await reader.read(_PIECE)).decode(errors="replace")
                    raise NotGiven(self.host, int(status), said)
            yield reader
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    def _unreachable(self, trouble: BaseException) -> DriverError:
        host, port = self._place
        said = str(trouble) or type(trouble).__name__
        return Unreachable(f"{self.host} gives no disks at {host} port {port}: {said}", passing=True)


class Unreachable(DriverError):
    pass


class NotGiven(DriverError):
    """The other host has answered that it cannot."""

    def __init__(self, host: str, status: int, said: str) -> None:
        super().__init__(f"{host}: {said}", passing=status == 503, kind="no such slot" if status == 404 else "driver")
        self.status = status


async def fetch_base(hv: Hypervisor, peer: Peer, name: str) -> Path:
    """The image that disks of the other host lie over."""
    path = hv.layout.base / name
    if path.exists():
        os.utime(path)  # in use: it is not to be tidied away now
    else:
        path.parent.mkdir(mode=0o711, parents=True, exist_ok=True)
        await peer.fetch(f"/base/{name}", path)
        await finished(in_thread(formats.check, path, path.suffix[1:]))
    return path


async def _exactly(reader: asyncio.StreamReader, length: int) -> bytes:
    async with asyncio.timeout(_SILENCE_SECONDS):
        return await reader.readexactly(length)


async def _take(reader: asyncio.StreamReader, descriptor: int, at: int, length: int) -> int:
    """Write the piece that comes; where it ends."""
    if length > _PIECE:
        raise OSError("a piece is longer than any")
    piece = await _exactly(reader, length)
    await finished(in_thread(_write_at, descriptor, piece, at))
    return at + length


def _write_at(descriptor: int, block: bytes, at: int) -> None:
    view = memoryview(block)
    while view:
        written = os.pwrite(descriptor, view, at)
        view, at = view[written:], at + written
