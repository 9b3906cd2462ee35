"""A reverse proxy between Kilonova and a service, which makes the service slow, wrong or unreachable.

with Proxy(cloud.endpoints["image"]) as proxy:
    proxy.url                                        # instead of the address of the service
    proxy.delay(2)                                   # each answer comes two seconds later
    proxy.fail(503, when=matches("GET", "/v2/images"), times=1)
    proxy.fail(500, after_service=True)              # the service executes the request, its answer is lost
    proxy.drop(when=matches("PUT", "/file$"))        # the connection ends without an answer
    held = proxy.hold(when=matches("POST"))          # requests wait until `held.release()`
    held.reached.wait(30)
    proxy.count(matches("DELETE"))                   # how many requests matched since the start
    proxy.reset()                                    # no faults any more

The header Host stays as it is, so the links in answers lead to the proxy.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from urllib.parse import urlsplit

CHUNK_BYTES = 1 << 16
HEAD_LIMIT_BYTES = 1 << 18
START_TIMEOUT_SECONDS = 30


@dataclass(frozen=True)
class Request:
    method: str
    path: str  # with the query
    headers: dict[str, str]  # names in lower case


Predicate = Callable[[Request], bool]


def matches(method: str | None = None, path: str = "") -> Predicate:
    """A predicate: the method is equal, and the path contains the regular expression."""
    pattern = re.compile(path)
    return lambda request: method in (None, request.method) and bool(pattern.search(request.path))


@dataclass(eq=False)
class Fault:
    """What happens to the requests that match."""

    when: Predicate
    times: int | None = None  # how many requests; None for all
    delay_seconds: float = 0.0
    status: int | None = None
    drops: bool = False
    after_service: bool = False  # the service executes the request before its answer is replaced
    holds: bool = False
    reached: threading.Event = field(default_factory=threading.Event)  # set when a request has matched
    _released: threading.Event = field(default_factory=threading.Event)

    def release(self) -> None:
        """Let held requests continue."""
        self._released.set()

    @property
    def answers(self) -> bool:
        return self.drops or self.status is not None

    async def wait(self) -> None:
        await asyncio.sleep(self.delay_seconds)
        while self.holds and not self._released.is_set():
            await asyncio.sleep(0.01)


class Proxy:
    """Forwards each request to `target_url`, which may have a path. It runs in a thread of its own."""

    def __init__(self, target_url: str) -> None:
        target = urlsplit(target_url)
        self._address = (target.hostname or "", target.port or 80)
        self._prefix = target.path.rstrip("/")
        self._faults: list[Fault] = []
        self._requests: list[Request] = []
        self._lock = threading.Lock()
        self._loop = asyncio.new_event_loop()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._started = threading.Event()
        self._port = 0

    # -- Start and stop

    def __enter__(self) -> Proxy:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        self._thread.start()
        assert self._started.wait(START_TIMEOUT_SECONDS), "the proxy does not start"

    def stop(self) -> None:
        """Stop listening and end all connections."""
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._listen())
        self._loop.run_forever()
        self._loop.close()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0, limit=HEAD_LIMIT_BYTES)
        self._port = self._server.sockets[0].getsockname()[1]
        self._started.set()

    async def _close(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -- Faults

    def delay(self, seconds: float, when: Predicate = matches(), times: int | None = None) -> Fault:
        """Send each answer this many seconds later."""
        return self._add(Fault(when, times, delay_seconds=seconds, after_service=True))

    def fail(
        self, status: int, when: Predicate = matches(), times: int | None = None, *, after_service: bool = False
    ) -> Fault:
        """Answer with this status. With `after_service` the service executes the request nevertheless."""
        return self._add(Fault(when, times, status=status, after_service=after_service))

    def drop(self, when: Predicate = matches(), times: int | None = None, *, after_service: bool = False) -> Fault:
        """End the connection without an answer. With `after_service` the service executes the request nevertheless."""
        return self._add(Fault(when, times, drops=True, after_service=after_service))

    def hold(self, when: Predicate = matches(), times: int | None = None, *, after_service: bool = False) -> Fault:
        """Keep requests, or with `after_service` their answers, until `release` of the returned fault."""
        return self._add(Fault(when, times, holds=True, after_service=after_service))

    def reset(self) -> None:
        """Remove all faults, and let held requests continue."""
        with self._lock:
            faults, self._faults = self._faults, []
        for fault in faults:
            fault.release()

    @property
    def requests(self) -> list[Request]:
        """All requests since the start, also those with faults."""
        with self._lock:
            return list(self._requests)

    def count(self, when: Predicate = matches()) -> int:
        """How many requests since the start match."""
        return sum(map(when, self.requests))

    def _add(self, fault: Fault) -> Fault:
        with self._lock:
            self._faults.append(fault)
        return fault

    def _record(self, request: Request) -> list[Fault]:
        """Record a request. Returns its faults: those added first come first."""
        with self._lock:
            self._requests.append(request)
            found = [fault for fault in self._faults if fault.times != 0 and fault.when(request)]
            for fault in found:
                if fault.times is not None:
                    fault.times -= 1
        return found

    # -- Forwarding: one request for each connection of the client

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._serve(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            writer.transport.abort()  # the client sees that the connection broke
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        except asyncio.IncompleteReadError:
            return  # the client connected and sent nothing
        line, *fields = head.rstrip("\r\n").split("\r\n")
        method, path, version = line.split(" ", 2)
        request = Request(method, path, _headers(fields))
        faults = self._record(request)
        for fault in faults:
            if not fault.after_service:
                fault.reached.set()
                await fault.wait()
        if early := next((fault for fault in faults if fault.answers and not fault.after_service), None):
            await _answer_fault(early, reader, writer, request)
            return
        kept = [text for text in fields if not text.lower().startswith(("connection:", "keep-alive:"))]
        forwarded = "\r\n".join([f"{method} {self._prefix}{path} {version}", *kept, "Connection: close", "", ""])
        try:
            upstream_reader, upstream = await asyncio.open_connection(*self._address, limit=HEAD_LIMIT_BYTES)
        except OSError:
            writer.transport.abort()  # as if the service itself were not reachable
            return
        upload = asyncio.create_task(_upload(reader, upstream, forwarded.encode("latin-1"), request))
        try:
            await self._return_answer(upstream_reader, writer, faults)
        finally:
            upload.cancel()
            await asyncio.gather(upload, return_exceptions=True)
            upstream.close()

    async def _return_answer(
        self, upstream: asyncio.StreamReader, writer: asyncio.StreamWriter, faults: list[Fault]
    ) -> None:
        head = await upstream.readuntil(b"\r\n\r\n")
        while head.split(b" ", 2)[1].startswith(b"1"):  # 100 Continue: the client sends its body after it
            writer.write(head)
            head = await upstream.readuntil(b"\r\n\r\n")
        for fault in faults:
            if fault.after_service:
                fault.reached.set()
                await fault.wait()
        if late := next((fault for fault in faults if fault.answers and fault.after_service), None):
            while await upstream.read(CHUNK_BYTES):
                pass
            _write_fault(late, writer)
            await writer.drain()
            return
        writer.write(_closing_head(head))
        while chunk := await upstream.read(CHUNK_BYTES):
            writer.write(chunk)
            await writer.drain()


async def _answer_fault(
    fault: Fault, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: Request
) -> None:
    if not fault.drops:
        # A client that still sends its body would not read the answer.
        async for _ in _body(reader, request):
            pass
    _write_fault(fault, writer)
    if not fault.drops:
        await writer.drain()


def _write_fault(fault: Fault, writer: asyncio.StreamWriter) -> None:
    if fault.drops:
        writer.transport.abort()
        return
    status = HTTPStatus(fault.status or 500)
    body = f'{{"error": {{"code": {status.value}, "message": "fault of the proxy"}}}}'.encode()
    lines = [f"HTTP/1.1 {status.value} {status.phrase}", "Content-Type: application/json"]
    lines += [f"Content-Length: {len(body)}", "Connection: close", "", ""]
    writer.write("\r\n".join(lines).encode() + body)


async def _upload(reader: asyncio.StreamReader, upstream: asyncio.StreamWriter, head: bytes, request: Request) -> None:
    try:
        upstream.write(head)
        async for chunk in _body(reader, request):
            upstream.write(chunk)
            await upstream.drain()
    except ConnectionError:
        pass  # a service may answer before it has read the whole body
    except asyncio.IncompleteReadError:
        upstream.transport.abort()  # the client ended, so its request ends


async def _body(reader: asyncio.StreamReader, request: Request) -> AsyncIterator[bytes]:
    """The bytes of a request's body as they were sent."""
    if "chunked" in request.headers.get("transfer-encoding", ""):
        size = -1
        while size != 0:
            line = await reader.readuntil(b"\r\n")
            yield line
            size = int(line.partition(b";")[0], 16)
            async for chunk in _exactly(reader, size + 2):
                yield chunk
    else:
        async for chunk in _exactly(reader, int(request.headers.get("content-length", "0"))):
            yield chunk


async def _exactly(reader: asyncio.StreamReader, size: int) -> AsyncIterator[bytes]:
    while size > 0:
        chunk = await reader.read(min(size, CHUNK_BYTES))
        if not chunk:
            raise asyncio.IncompleteReadError(b"", size)
        size -= len(chunk)
        yield chunk


def _headers(fields: list[str]) -> dict[str, str]:
    pairs = (text.partition(":") for text in fields)
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


def _closing_head(head: bytes) -> bytes:
    """The head of an answer after which the connection ends."""
    lines = head.rstrip(b"\r\n").split(b"\r\n")
    kept = [line for line in lines if not line.lower().startswith((b"connection:", b"keep-alive:"))]
    return b"\r\n".join([*kept, b"Connection: close", b"", b""])
