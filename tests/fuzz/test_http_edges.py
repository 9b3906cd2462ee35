"""The edges of the HTTP core: clients that leave, answers that break off, headers that cannot be said."""

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

from kilonova.http import Answer, Api, Context, context, protocol
from kilonova.http.client import InProcess, Remote, Response, Unreachable
from kilonova.http.schema import Validator
from kilonova.http.server import Server, bind
from kilonova.network.client import NetworkError
from kilonova.telemetry.logs import JsonFormatter
from tests.http.toy import Toy, toy_fault
from tests.support import run

Handler = Callable[[Context], Awaitable[Answer | None]]


def app(handler: Handler, method: str = "GET", **options: Any) -> Toy:
    api = Api("edge", prefix="/edge", errors=toy_fault)
    api.route(method, "/x", public=True, **options)(handler)
    api.compile([])
    return Toy(api)


@asynccontextmanager
async def served(toy: Toy) -> AsyncIterator[int]:
    bound = bind("127.0.0.1", 0)
    server = Server(toy.app, bound)
    await server.start()
    try:
        yield bound.getsockname()[1]
    finally:
        await server.stop()


async def talk(port: int, data: bytes) -> bytes:
    """Everything the server says until it hangs up."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    try:
        async with asyncio.timeout(60):
            return await reader.read()
    finally:
        writer.close()


def get(path: str = "/edge/x", method: str = "GET") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()


# Answers that cannot be given


@pytest.mark.parametrize(
    "answer",
    [
        Answer({"name": "\ud800"}),
        Answer({"number": 2**70}),
        Answer({"thing": object()}),
        Answer({}, headers={"Location": "http://x/\U0001f600"}),
        Answer({}, headers={"Location": "http://x/\r\nX-Evil: 1"}),
        Answer({}, headers={"Location": "http://x/\nX-Evil: 1"}),
        Answer({}, headers={"Location": "http://x/\x00"}),
    ],
)
def test_what_cannot_be_said_is_an_error_in_the_apis_format(answer: Answer) -> None:
    async def handler(ctx: Context) -> Answer:
        return answer

    async def scenario() -> bytes:
        async with served(app(handler)) as port:
            return await talk(port, get())

    said = run(scenario())
    assert said.startswith(b"HTTP/1.1 500 ")
    assert b"X-Evil" not in said
    assert json.loads(said.partition(b"\r\n\r\n")[2])["fault"]["code"] == 500


def test_a_name_for_a_header_may_be_encoded(caplog: pytest.LogCaptureFixture) -> None:
    async def handler(ctx: Context) -> Answer:
        return Answer({}, headers={"Location": ctx.links("/\U0001f600 \r\n")[0]["href"]})

    answer = app(handler).get("/edge/x")
    assert answer.status == 200
    assert answer.headers["location"].endswith("/%F0%9F%98%80%20%0D%0A")


def test_another_service_out_of_reach_is_503(caplog: pytest.LogCaptureFixture) -> None:
    async def handler(ctx: Context) -> Answer:
        raise Unreachable("10.0.0.7 cannot be reached")

    answer = app(handler).get("/edge/x")
    assert answer.status == 503
    assert b"10.0.0.7" not in answer.body


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409])
def test_a_refusal_by_another_service_is_passed_on(status: int) -> None:
    async def handler(ctx: Context) -> Answer:
        raise NetworkError(status, "Why", "because")

    answer = app(handler).get("/edge/x")
    assert (answer.status, answer.json()) == (status, {"fault": {"code": status, "message": "because"}})


@pytest.mark.parametrize("odd", ["\ud800", 2**70, {1: 2}, b"\xff", float("inf")])
def test_a_log_line_is_written_whatever_is_in_it(odd: Any) -> None:
    record = logging.makeLogRecord({"msg": "%s", "args": (odd,), "name": "x", "levelname": "INFO", "extra": odd})
    line = JsonFormatter().format(record)
    assert "\n" not in line
    assert json.loads(line.encode())["level"] == "info"


# Clients that leave


def test_a_client_that_leaves_does_not_stop_what_it_asked_for() -> None:
    begun, done = asyncio.Event(), asyncio.Event()

    async def handler(ctx: Context) -> Answer:
        begun.set()
        await asyncio.sleep(0.1)
        done.set()
        return Answer({"big": "x" * 1_000_000})

    async def scenario() -> None:
        async with served(app(handler)) as port:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(get())
            await begun.wait()
            writer.transport.abort()
            async with asyncio.timeout(60):
                await done.wait()
            assert await talk(port, get("/edge/none"))

    run(scenario())


def test_a_handler_that_waits_for_a_body_hears_that_the_client_has_left() -> None:
    errors: list[str] = []
    begun = asyncio.Event()

    async def handler(ctx: Context) -> Answer:
        begun.set()
        try:
            _ = [chunk async for chunk in ctx.stream()]
        except Exception as error:
            errors.append(str(error))
            raise
        return Answer()

    async def scenario() -> None:
        async with served(app(handler, "PUT", stream=True)) as port:
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


def test_a_client_that_stops_sending_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "CHUNK_SECONDS", 0.1)

    async def handler(ctx: Context) -> Answer:
        return Answer({"size": sum([len(chunk) async for chunk in ctx.stream()])})

    async def scenario() -> None:
        async with served(app(handler, "PUT", stream=True)) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"PUT /edge/x HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nhalf")
            async with asyncio.timeout(60):
                assert (await reader.readline()).startswith(b"HTTP/1.1 408 ")
            writer.close()

    run(scenario())


def test_a_client_that_never_says_what_it_wants_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEAD_SECONDS", 0.1)

    async def handler(ctx: Context) -> Answer:
        return Answer({"ok": True})

    async def scenario() -> None:
        async with served(app(handler)) as port:
            said = await talk(port, b"GET /edge/x HTTP/1.1\r\nHost: x\r\nX-Slow")
            assert said.startswith(b"HTTP/1.1 408 ")
            # Also as the second request of a connection; and a whole one has all the time it needs.
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(get().replace(b"Connection: close\r\n", b""))
            await asyncio.sleep(0.3)
            writer.write(b"GET ")
            async with asyncio.timeout(60):
                said = await reader.read()
            assert said.startswith(b"HTTP/1.1 200 ")
            assert b"HTTP/1.1 408 " in said
            writer.close()

    run(scenario())


# Answers that break off


async def three_chunks() -> AsyncIterator[bytes]:
    yield b"one"
    yield b"two"
    raise OSError("the disk is gone")


def breaks_off(headers: dict[str, str] | None = None) -> Toy:
    async def handler(ctx: Context) -> Answer:
        return Answer(stream=three_chunks(), headers=headers)

    return app(handler)


@pytest.mark.parametrize("headers", [None, {"Content-Length": "9"}])
def test_a_stream_that_breaks_off_is_not_taken_for_a_whole_one(
    headers: dict[str, str] | None, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> bytes:
        async with served(breaks_off(headers)) as port:
            with pytest.raises(Unreachable):
                caller = Remote(f"http://127.0.0.1:{port}")
                try:
                    await caller.request("GET", "/edge/x")
                finally:
                    await caller.close()
            return await talk(port, get())

    with caplog.at_level(logging.ERROR):
        said = run(scenario())
    assert said.startswith(b"HTTP/1.1 200 ")
    assert b"two" in said
    assert not said.endswith(b"0\r\n\r\n")
    assert b"disk" not in said
    assert "the disk is gone" in caplog.text


def test_also_for_callers_in_the_process(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> list[bytes]:
        caller = InProcess(breaks_off().app)
        with pytest.raises(Unreachable):
            await caller.request("GET", "/edge/x")
        got = []
        with pytest.raises(Unreachable):
            async with asyncio.timeout(60), caller.stream("GET", "/edge/x") as answer:
                async for chunk in answer.chunks:
                    got.append(chunk)
        return got

    assert run(scenario()) == [b"one", b"two"]


def test_a_reader_in_the_process_that_leaves_ends_the_stream() -> None:
    closed = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        try:
            while True:
                yield b"x"
        finally:
            closed.set()

    async def handler(ctx: Context) -> Answer:
        return Answer(stream=endless())

    async def scenario() -> None:
        async with InProcess(app(handler).app).stream("GET", "/edge/x") as answer:
            async for _ in answer.chunks:
                break
        assert closed.is_set()

    run(scenario())


def test_a_caller_in_the_process_that_is_cancelled_stops_the_call() -> None:
    begun, stopped = asyncio.Event(), asyncio.Event()

    async def handler(ctx: Context) -> Answer:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set()
        return Answer()

    async def scenario() -> None:
        call = asyncio.create_task(InProcess(app(handler).app).request("GET", "/edge/x"))
        await begun.wait()
        call.cancel()
        await asyncio.wait([call])
        assert call.cancelled()
        assert stopped.is_set()

    run(scenario())


def test_a_body_comes_once() -> None:
    """Who asks again after the end waits for the caller to leave, which one in the process never does."""

    async def handler(ctx: Context) -> Answer:
        seen = [chunk async for chunk in ctx.stream()]
        more = asyncio.create_task(ctx.receive())
        await asyncio.sleep(0.01)
        is_waiting = not more.done()
        more.cancel()
        return Answer({"seen": len(seen), "waits": is_waiting})

    toy = app(handler, "PUT", stream=True)
    assert toy.request("PUT", "/edge/x", content=b"once").json() == {"seen": 1, "waits": True}
    assert toy.request("PUT", "/edge/x").json() == {"seen": 0, "waits": True}


# HEAD, and nothing to say


def test_head_has_the_headers_and_no_body() -> None:
    async def handler(ctx: Context) -> Answer:
        return Answer({"a": 1})

    async def scenario() -> bytes:
        async with served(app(handler, "HEAD")) as port:
            return await talk(port, get(method="HEAD").replace(b"Connection: close\r\n", b"") + get(method="HEAD"))

    said = run(scenario())
    assert said.count(b"HTTP/1.1 200 ") == 2
    assert said.count(b"content-length: 7") == 2
    assert b'{"a"' not in said


def test_a_broken_chunk_ends_the_request() -> None:
    seen: list[str] = []

    async def handler(ctx: Context) -> Answer:
        try:
            _ = [chunk async for chunk in ctx.stream()]
        except Exception as error:
            seen.append(type(error).__name__)
            raise
        return Answer()

    async def scenario() -> bytes:
        async with served(app(handler, "PUT", stream=True)) as port:
            head = b"PUT /edge/x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"
            return await talk(port, head + b"nonsense\r\n")

    assert run(scenario()).startswith(b"HTTP/1.1 400 ")
    assert seen == ["BadRequest"]


def test_garbage_behind_a_request_does_not_cost_its_answer() -> None:
    async def handler(ctx: Context) -> Answer:
        await asyncio.sleep(0.1)
        return Answer({"ok": True})

    async def scenario() -> bytes:
        async with served(app(handler)) as port:
            return await talk(port, get().replace(b"Connection: close\r\n", b"") * 2 + b"\x00\x01\x02")

    assert run(scenario()).count(b'{"ok":true}') == 2


def test_a_refusal_takes_no_time_however_long_the_list() -> None:
    item = {"type": "object", "properties": {"a": {"type": "string", "format": "uuid"}}, "required": ["a"]}
    schema = {"type": "object", "properties": {"items": {"oneOf": [{"type": "array", "items": item}, {"const": "no"}]}}}
    began = time.process_time()
    for wrong in ([1] * 200_000, [{"a": "x"}] * 200_000, [{"a": "0" * 32}] * 600 + [{}]):
        with pytest.raises(Exception, match="items"):
            Validator(schema).check({"items": wrong})
    assert time.process_time() - began < 5


def test_many_at_once() -> None:
    """More connections than a listener's backlog of old, all answered."""

    async def handler(ctx: Context) -> Answer:
        await asyncio.sleep(0.05)
        return Answer({"ok": True})

    async def scenario() -> list[bytes]:
        async with served(app(handler)) as port:
            return await asyncio.gather(*(talk(port, get()) for _ in range(300)))

    assert all(said.startswith(b"HTTP/1.1 200 ") for said in run(scenario()))


def test_a_remote_that_is_not_there() -> None:
    async def scenario() -> Response:
        with socket.socket() as mute:  # it does not listen, and nobody else can at its port
            mute.bind(("127.0.0.1", 0))
            caller = Remote(f"http://127.0.0.1:{mute.getsockname()[1]}")
            try:
                return await caller.request("GET", "/")
            finally:
                await caller.close()

    with pytest.raises(Unreachable):
        run(scenario())
