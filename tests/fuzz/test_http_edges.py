"""Edge cases of the HTTP framework: disconnecting clients, incomplete responses, invalid headers."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kilonova.http import Api, Context, Response, context, protocol
from kilonova.http.client import ClientResponse, InProcess, Remote, Unreachable
from kilonova.http.schema import Validator
from kilonova.http.server import Server, listen
from kilonova.network.client import NetworkError
from kilonova.telemetry.logs import JsonFormatter
from tests.http.toy import Toy, toy_fault
from tests.support import run

Handler = Callable[[Context], Awaitable[Response | None]]


def app(handler: Handler, method: str = "GET", **options: Any) -> Toy:
    api = Api("edge", prefix="/edge", errors=toy_fault)
    api.route(method, "/x", public=True, **options)(handler)
    api.compile([])
    return Toy(api)


@asynccontextmanager
async def serve(toy: Toy) -> AsyncIterator[int]:
    bound = listen("127.0.0.1", 0)
    server = Server(toy.app, bound)
    await server.start()
    try:
        yield bound.getsockname()[1]
    finally:
        await server.stop()


async def exchange(port: int, data: bytes) -> bytes:
    """Everything that the server sends until it closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    try:
        async with asyncio.timeout(60):
            return await reader.read()
    finally:
        writer.close()


def get(path: str = "/edge/x", method: str = "GET") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()


# Invalid responses


@pytest.mark.parametrize(
    "answer",
    [
        Response({"name": "\ud800"}),
        Response({"number": 2**70}),
        Response({"thing": object()}),
        Response({}, headers={"Location": "http://x/\U0001f600"}),
        Response({}, headers={"Location": "http://x/\r\nX-Evil: 1"}),
        Response({}, headers={"Location": "http://x/\nX-Evil: 1"}),
        Response({}, headers={"Location": "http://x/\x00"}),
    ],
)
def test_unencodable_response_is_500_in_the_apis_format(answer: Response) -> None:
    async def handler(ctx: Context) -> Response:
        return answer

    async def scenario() -> bytes:
        async with serve(app(handler)) as port:
            return await exchange(port, get())

    received = run(scenario())
    assert received.startswith(b"HTTP/1.1 500 ")
    assert b"X-Evil" not in received
    assert json.loads(received.partition(b"\r\n\r\n")[2])["fault"]["code"] == 500


def test_links_in_headers_are_percent_encoded(caplog: pytest.LogCaptureFixture) -> None:
    async def handler(ctx: Context) -> Response:
        return Response({}, headers={"Location": ctx.links("/\U0001f600 \r\n")[0]["href"]})

    answer = app(handler).get("/edge/x")
    assert answer.status == 200
    assert answer.headers["location"].endswith("/%F0%9F%98%80%20%0D%0A")


def test_unreachable_service_is_503(caplog: pytest.LogCaptureFixture) -> None:
    async def handler(ctx: Context) -> Response:
        raise Unreachable("10.0.0.7 cannot be reached")

    answer = app(handler).get("/edge/x")
    assert answer.status == 503
    assert b"10.0.0.7" not in answer.body


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409])
def test_refusal_of_another_service_is_forwarded(status: int) -> None:
    async def handler(ctx: Context) -> Response:
        raise NetworkError(status, "Why", "because")

    answer = app(handler).get("/edge/x")
    assert (answer.status, answer.json()) == (status, {"fault": {"code": status, "message": "because"}})


@pytest.mark.parametrize("odd", ["\ud800", 2**70, {1: 2}, b"\xff", float("inf")])
def test_log_line_with_unusual_values(odd: Any) -> None:
    record = logging.makeLogRecord({"msg": "%s", "args": (odd,), "name": "x", "levelname": "INFO", "extra": odd})
    line = JsonFormatter().format(record)
    assert "\n" not in line
    assert json.loads(line.encode())["level"] == "info"


# Disconnecting clients


def test_disconnect_does_not_stop_the_handler() -> None:
    begun, done = asyncio.Event(), asyncio.Event()

    async def handler(ctx: Context) -> Response:
        begun.set()
        await asyncio.sleep(0.1)
        done.set()
        return Response({"big": "x" * 1_000_000})

    async def scenario() -> None:
        async with serve(app(handler)) as port:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(get())
            await begun.wait()
            writer.transport.abort()
            async with asyncio.timeout(60):
                await done.wait()
            assert await exchange(port, get("/edge/none"))

    run(scenario())


def test_disconnect_fails_a_handler_that_reads_the_body() -> None:
    errors: list[str] = []
    begun = asyncio.Event()

    async def handler(ctx: Context) -> Response:
        begun.set()
        try:
            _ = [chunk async for chunk in ctx.stream()]
        except Exception as error:
            errors.append(str(error))
            raise
        return Response()

    async def scenario() -> None:
        async with serve(app(handler, "PUT", stream=True)) as port:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"PUT /edge/x HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nhalf")
            await writer.drain()
            await begun.wait()
            writer.transport.abort()
            async with asyncio.timeout(60):
                while not errors:
                    await asyncio.sleep(0.01)

    run(scenario())
    assert "closed the connection" in errors[0]


def test_stalled_body_is_408(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "CHUNK_TIMEOUT_SECONDS", 0.1)

    async def handler(ctx: Context) -> Response:
        return Response({"size": sum([len(chunk) async for chunk in ctx.stream()])})

    async def scenario() -> None:
        async with serve(app(handler, "PUT", stream=True)) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"PUT /edge/x HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nhalf")
            async with asyncio.timeout(60):
                assert (await reader.readline()).startswith(b"HTTP/1.1 408 ")
            writer.close()

    run(scenario())


def test_stalled_head_is_408(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEAD_TIMEOUT_SECONDS", 0.1)

    async def handler(ctx: Context) -> Response:
        return Response({"ok": True})

    async def scenario() -> None:
        async with serve(app(handler)) as port:
            received = await exchange(port, b"GET /edge/x HTTP/1.1\r\nHost: x\r\nX-Slow")
            assert received.startswith(b"HTTP/1.1 408 ")
            # Also for the second request of a connection. A complete request has no time limit.
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(get().replace(b"Connection: close\r\n", b""))
            await asyncio.sleep(0.3)
            writer.write(b"GET ")
            async with asyncio.timeout(60):
                received = await reader.read()
            assert received.startswith(b"HTTP/1.1 200 ")
            assert b"HTTP/1.1 408 " in received
            writer.close()

    run(scenario())


# Incomplete responses


async def three_chunks() -> AsyncIterator[bytes]:
    yield b"one"
    yield b"two"
    raise OSError("the disk is gone")


def incomplete_response(headers: dict[str, str] | None = None) -> Toy:
    async def handler(ctx: Context) -> Response:
        return Response(stream=three_chunks(), headers=headers)

    return app(handler)


@pytest.mark.parametrize("headers", [None, {"Content-Length": "9"}])
def test_incomplete_stream_is_detected_by_clients(
    headers: dict[str, str] | None, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> bytes:
        async with serve(incomplete_response(headers)) as port:
            with pytest.raises(Unreachable):
                caller = Remote(f"http://127.0.0.1:{port}")
                try:
                    await caller.request("GET", "/edge/x")
                finally:
                    await caller.close()
            return await exchange(port, get())

    with caplog.at_level(logging.ERROR):
        received = run(scenario())
    assert received.startswith(b"HTTP/1.1 200 ")
    assert b"two" in received
    assert not received.endswith(b"0\r\n\r\n")
    assert b"disk" not in received
    assert "the disk is gone" in caplog.text


def test_incomplete_stream_is_detected_in_process(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> list[bytes]:
        caller = InProcess(incomplete_response().app)
        with pytest.raises(Unreachable):
            await caller.request("GET", "/edge/x")
        got = []
        with pytest.raises(Unreachable):
            async with asyncio.timeout(60), caller.stream("GET", "/edge/x") as answer:
                async for chunk in answer.chunks:
                    got.append(chunk)
        return got

    assert run(scenario()) == [b"one", b"two"]


def test_leaving_a_stream_in_process_closes_it() -> None:
    closed = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        try:
            while True:
                yield b"x"
        finally:
            closed.set()

    async def handler(ctx: Context) -> Response:
        return Response(stream=endless())

    async def scenario() -> None:
        async with InProcess(app(handler).app).stream("GET", "/edge/x") as answer:
            async for _ in answer.chunks:
                break
        assert closed.is_set()

    run(scenario())


def test_cancelling_a_call_in_process_stops_the_handler() -> None:
    begun, stopped = asyncio.Event(), asyncio.Event()

    async def handler(ctx: Context) -> Response:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set()
        return Response()

    async def scenario() -> None:
        call = asyncio.create_task(InProcess(app(handler).app).request("GET", "/edge/x"))
        await begun.wait()
        call.cancel()
        await asyncio.wait([call])
        assert call.cancelled()
        assert stopped.is_set()

    run(scenario())


def test_body_is_received_once() -> None:
    """`receive` after the end waits for a disconnect, which never comes from a caller in this process."""

    async def handler(ctx: Context) -> Response:
        seen = [chunk async for chunk in ctx.stream()]
        more = asyncio.create_task(ctx.receive())
        await asyncio.sleep(0.01)
        is_waiting = not more.done()
        more.cancel()
        return Response({"seen": len(seen), "waits": is_waiting})

    toy = app(handler, "PUT", stream=True)
    assert toy.request("PUT", "/edge/x", content=b"once").json() == {"seen": 1, "waits": True}
    assert toy.request("PUT", "/edge/x").json() == {"seen": 0, "waits": True}


# HEAD, and invalid requests


def test_head_has_headers_and_no_body() -> None:
    async def handler(ctx: Context) -> Response:
        return Response({"a": 1})

    async def scenario() -> bytes:
        async with serve(app(handler, "HEAD")) as port:
            return await exchange(port, get(method="HEAD").replace(b"Connection: close\r\n", b"") + get(method="HEAD"))

    received = run(scenario())
    assert received.count(b"HTTP/1.1 200 ") == 2
    assert received.count(b"content-length: 7") == 2
    assert b'{"a"' not in received


def test_malformed_chunk_is_400() -> None:
    seen: list[str] = []

    async def handler(ctx: Context) -> Response:
        try:
            _ = [chunk async for chunk in ctx.stream()]
        except Exception as error:
            seen.append(type(error).__name__)
            raise
        return Response()

    async def scenario() -> bytes:
        async with serve(app(handler, "PUT", stream=True)) as port:
            head = b"PUT /edge/x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"
            return await exchange(port, head + b"nonsense\r\n")

    assert run(scenario()).startswith(b"HTTP/1.1 400 ")
    assert seen == ["BadRequest"]


def test_garbage_after_requests_does_not_lose_their_responses() -> None:
    async def handler(ctx: Context) -> Response:
        await asyncio.sleep(0.1)
        return Response({"ok": True})

    async def scenario() -> bytes:
        async with serve(app(handler)) as port:
            return await exchange(port, get().replace(b"Connection: close\r\n", b"") * 2 + b"\x00\x01\x02")

    assert run(scenario()).count(b'{"ok":true}') == 2


def test_validation_errors_of_long_lists_are_fast() -> None:
    item = {"type": "object", "properties": {"a": {"type": "string", "format": "uuid"}}, "required": ["a"]}
    schema = {"type": "object", "properties": {"items": {"oneOf": [{"type": "array", "items": item}, {"const": "no"}]}}}
    began = time.process_time()
    for wrong in ([1] * 200_000, [{"a": "x"}] * 200_000, [{"a": "0" * 32}] * 600 + [{}]):
        with pytest.raises(Exception, match="items"):
            Validator(schema).check({"items": wrong})
    assert time.process_time() - began < 5


def test_many_concurrent_connections() -> None:
    """More connections than a small listen backlog, all answered."""

    async def handler(ctx: Context) -> Response:
        await asyncio.sleep(0.05)
        return Response({"ok": True})

    async def scenario() -> list[bytes]:
        async with serve(app(handler)) as port:
            return await asyncio.gather(*(exchange(port, get()) for _ in range(300)))

    assert all(received.startswith(b"HTTP/1.1 200 ") for received in run(scenario()))


def test_unused_port_is_unreachable() -> None:
    async def scenario() -> ClientResponse:
        with socket.socket() as unused:  # bound but not listening, so that the port stays unused
            unused.bind(("127.0.0.1", 0))
            caller = Remote(f"http://127.0.0.1:{unused.getsockname()[1]}")
            try:
                return await caller.request("GET", "/")
            finally:
                await caller.close()

    with pytest.raises(Unreachable):
        run(scenario())
