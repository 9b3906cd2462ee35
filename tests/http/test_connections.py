"""Limits of connections, and clients that send or read slowly, on real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
import uvloop

from kilonova.config import Api as Settings
from kilonova.http import Api, Context, Response, connections, context, protocol, server
from kilonova.http.connections import ConnectionLimits, limits_of, raise_file_descriptors
from kilonova.http.server import Server, listen
from tests.http.toy import Toy, toy_fault

GET = b"GET /edge/x HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST /edge/x HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n"
PUT = b"PUT /edge/x HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n"
LARGE = 8_000_000
TIMEOUT_SECONDS = 60.0
Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def run(scenario: object) -> None:
    """On the loop that processes use."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scenario)  # type: ignore[arg-type]


def edge() -> Toy:
    api = Api("edge", prefix="/edge", errors=toy_fault)

    @api.route("GET", "/x", public=True)
    async def show(ctx: Context) -> Response:
        return Response({"ok": True})

    @api.route("GET", "/large", public=True)
    async def large(ctx: Context) -> Response:
        return Response(b"x" * LARGE)

    @api.route("POST", "/x", public=True, body={})
    async def create(ctx: Context) -> Response:
        return Response({"ok": True})

    @api.route("PUT", "/x", public=True, stream=True)
    async def upload(ctx: Context) -> Response:
        return Response({"size": sum([len(chunk) async for chunk in ctx.stream()])})

    api.compile([])
    return Toy(api)


class Port:
    def __init__(self, number: int, limits: ConnectionLimits) -> None:
        self.number = number
        self.limits = limits
        self._writers: list[asyncio.StreamWriter] = []

    async def connect(self, data: bytes = b"") -> Stream:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.number)
        self._writers.append(writer)
        writer.write(data)
        return reader, writer

    async def connect_busy(self) -> Stream:
        """A connection with a request that the server has begun to read: it answers `100 Continue`."""
        stream = await self.connect(POST.replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n"))
        async with asyncio.timeout(TIMEOUT_SECONDS):
            assert b" 100 " in await stream[0].readuntil(b"\r\n\r\n")
        return stream

    async def close(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def wait_until_open(self, count: int) -> None:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while self.limits.count != count:
                await asyncio.sleep(0.01)


@asynccontextmanager
async def serving(maximum: int = 0, per_address: int = 0) -> AsyncIterator[Port]:
    bound = listen("127.0.0.1", 0)
    limits = ConnectionLimits(maximum, per_address)
    running = Server(edge().app, bound, limits=limits)
    await running.start()
    port = Port(bound.getsockname()[1], limits)
    try:
        yield port
    finally:
        await port.close()
        await running.stop()


async def answer(stream: Stream) -> bytes:
    """The head of the next response, or nothing if the server closes the connection."""
    async with asyncio.timeout(TIMEOUT_SECONDS):
        try:
            head = await stream[0].readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            return b""
        size = next(int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"content-length:"))
        await stream[0].readexactly(size)
        return head


async def trickle(stream: Stream, byte: bytes) -> None:
    """Send a byte again and again, faster than any deadline of a single read."""
    with contextlib.suppress(ConnectionError):
        while not stream[1].is_closing():
            stream[1].write(byte)
            await stream[1].drain()
            await asyncio.sleep(0.02)


async def answer_while_trickling(stream: Stream, byte: bytes) -> bytes:
    sending = asyncio.create_task(trickle(stream, byte))
    try:
        return await answer(stream)
    finally:
        sending.cancel()


@pytest.fixture
def short_deadlines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEAD_TIMEOUT_SECONDS", 0.3)
    monkeypatch.setattr(protocol, "STALL_TIMEOUT_SECONDS", 0.3)
    monkeypatch.setattr(context, "SLOW_BODY_SECONDS", 0.3)
    monkeypatch.setattr(server, "KEEP_ALIVE_SECONDS", 0.3)


# Slow clients


@pytest.mark.usefixtures("short_deadlines")
@pytest.mark.parametrize("begin, byte", [(GET[:5], b"a"), (GET[:-2], b"X-A: b\r\n"), (GET + GET[:-2], b"a")])
def test_head_byte_by_byte_is_408(begin: bytes, byte: bytes) -> None:
    async def scenario() -> None:
        async with serving() as port:
            stream = await port.connect(begin)
            if begin.startswith(GET):
                assert b" 200 " in await answer(stream)
            assert b" 408 " in await answer_while_trickling(stream, byte)

    run(scenario())


@pytest.mark.usefixtures("short_deadlines")
@pytest.mark.parametrize("begin", [POST, PUT])
def test_body_byte_by_byte_is_408(begin: bytes) -> None:
    async def scenario() -> None:
        async with serving() as port:
            assert b" 408 " in await answer_while_trickling(await port.connect(begin), b"[")

    run(scenario())


@pytest.mark.usefixtures("short_deadlines")
@pytest.mark.parametrize(
    "begin, byte, status",
    [
        # Bytes that are no request do not keep the connection open,
        (GET, b"\r\n", b" 200 "),
        # and neither does the rest of a body that was refused before it arrived.
        (POST.replace(b"100\r", b"99999999999\r"), b" ", b" 413 "),
    ],
)
def test_trickle_after_a_response_is_cut(begin: bytes, byte: bytes, status: bytes) -> None:
    async def scenario() -> None:
        async with serving() as port:
            stream = await port.connect(begin)
            assert status in await answer(stream)
            assert await answer_while_trickling(stream, byte) == b""

    run(scenario())


@pytest.mark.usefixtures("short_deadlines")
@pytest.mark.parametrize("close", [b"", b"Connection: close\r\n"])
def test_response_that_is_not_read_is_cut(close: bytes) -> None:
    async def scenario() -> None:
        async with serving() as port:
            unread = socket.socket()
            unread.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            unread.connect(("127.0.0.1", port.number))
            unread.sendall(GET.replace(b"/x", b"/large").replace(b"\r\n\r\n", b"\r\n" + close + b"\r\n"))
            await port.wait_until_open(1)
            await port.wait_until_open(0)
            unread.close()

    run(scenario())


def test_response_that_is_read_is_complete() -> None:
    async def scenario() -> None:
        async with serving() as port:
            stream = await port.connect(GET.replace(b"/x", b"/large"))
            assert b" 200 " in await answer(stream)
            stream[1].write(GET)
            assert b" 200 " in await answer(stream)

    run(scenario())


# Many connections


def test_connections_per_address_are_limited() -> None:
    async def scenario() -> None:
        async with serving(per_address=3) as port:
            streams = [await port.connect(GET) for _ in range(3)]
            assert [b" 200 " in await answer(stream) for stream in streams] == [True] * 3
            refused = await answer(await port.connect(GET))
            assert b" 503 " in refused
            assert b"retry-after: 1" in refused
            streams[0][1].close()
            await port.wait_until_open(2)
            assert b" 200 " in await answer(await port.connect(GET))

    run(scenario())


def test_longest_idle_connections_make_room() -> None:
    async def scenario() -> None:
        async with serving(maximum=3) as port:
            first, second = await port.connect(GET), await port.connect(GET)
            busy = await port.connect_busy()
            assert b" 200 " in await answer(second)
            assert b" 200 " in await answer(first)
            first[1].write(GET)
            assert b" 200 " in await answer(first)
            assert b" 200 " in await answer(await port.connect(GET))
            assert await answer(second) == b"", "the connection that was idle longest is closed"
            await port.wait_until_open(3)
            busy[1].write(b"{}".ljust(100))
            assert b" 200 " in await answer(busy)

    run(scenario())


def test_connections_with_requests_are_not_closed_for_new_ones() -> None:
    async def scenario() -> None:
        async with serving(maximum=2) as port:
            busy = [await port.connect_busy() for _ in range(2)]
            assert b" 503 " in await answer(await port.connect(GET))
            await port.wait_until_open(2)
            for stream in busy:
                stream[1].write(b"{}".ljust(100))
            assert [b" 200 " in await answer(stream) for stream in busy] == [True] * 2

    run(scenario())


@pytest.fixture
def few_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 1024), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("few_descriptors")
def test_file_descriptors_are_raised(caplog: pytest.LogCaptureFixture) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with caplog.at_level("INFO"):
        limits = limits_of(Settings())
    found = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert found == min(hard, connections.MAX_FILE_DESCRIPTORS)
    assert limits.maximum == found // 2
    (line,) = caplog.records
    assert (vars(line)["file_descriptors"], vars(line)["connections"]) == (found, found // 2)
    caplog.clear()
    assert limits_of(Settings(max_connections=found)).maximum == found
    assert "ulimit" in caplog.text


def test_thousands_of_idle_connections_do_not_stop_others() -> None:
    count = min(5000, raise_file_descriptors() // 2 - 200)

    async def scenario() -> None:
        async with serving() as port:
            idle = [socket.socket() for _ in range(count)]
            for connection in idle:
                connection.setblocking(False)
                await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", port.number))
            await port.wait_until_open(count)
            stream = await port.connect()
            for _ in range(20):
                stream[1].write(GET)
                assert b" 200 " in await answer(stream)
            assert port.limits.count == count + 1
            for connection in idle:
                connection.close()
            await port.wait_until_open(1)

    run(scenario())
