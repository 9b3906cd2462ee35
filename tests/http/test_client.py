"""The HTTP client for APIs in the same process, with and without streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kilonova.http import Api, Context, Response
from kilonova.http.client import InProcess, Remote, Unreachable
from tests.http.toy import Toy, toy_fault
from tests.support import run


def echo() -> Toy:
    api = Api("echo", prefix="/echo", errors=toy_fault)

    @api.route("PUT", "/file", stream=True, public=True)
    async def put(ctx: Context) -> Response:
        sizes = [len(chunk) async for chunk in ctx.stream()]
        return Response({"sizes": sizes})

    @api.route("GET", "/file", public=True)
    async def get(ctx: Context) -> Response:
        async def chunks() -> AsyncIterator[bytes]:
            for number in range(20):
                yield b"%03d" % number

        return Response(stream=chunks(), headers={"Content-Type": "application/octet-stream"})

    api.compile([])
    return Toy(api)


async def chunks_of_body() -> AsyncIterator[bytes]:
    for size in (3, 5, 0, 2):
        yield b"x" * size


def test_request_body_is_streamed() -> None:
    caller = InProcess(echo().app, "/echo")
    assert run(caller.request("PUT", "/file", content=chunks_of_body())).json() == {"sizes": [3, 5, 2]}
    assert run(caller.request("PUT", "/file", content=b"12345")).json() == {"sizes": [5]}


def test_failing_request_body_raises_only_in_the_caller(caplog: pytest.LogCaptureFixture) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"some"
        raise LookupError("no more")

    caller = InProcess(echo().app, "/echo")
    with pytest.raises(LookupError, match="no more"):
        run(caller.request("PUT", "/file", content=broken()))
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_response_body_is_streamed() -> None:
    async def scenario() -> tuple[int, Any, list[bytes]]:
        caller = InProcess(echo().app, "/echo")
        async with caller.stream("GET", "/file") as answer:
            return answer.status, answer.headers["content-type"], [chunk async for chunk in answer.chunks]

    status, kind, chunks = run(scenario())
    assert (status, kind) == (200, "application/octet-stream")
    assert chunks == [b"%03d" % number for number in range(20)]


def test_stream_can_be_left_early() -> None:
    async def scenario() -> bytes:
        caller = InProcess(echo().app, "/echo")
        async with caller.stream("GET", "/file") as answer:
            async for chunk in answer.chunks:
                return chunk
        raise AssertionError

    assert run(scenario()) == b"000"


def test_stream_returns_error_response() -> None:
    async def scenario() -> tuple[int, bytes]:
        caller = InProcess(echo().app, "/echo")
        async with caller.stream("GET", "/nothing") as answer:
            return answer.status, b"".join([chunk async for chunk in answer.chunks])

    status, body = run(scenario())
    assert status == 401
    assert b"requires authentication" in body


# Over the network


@asynccontextmanager
async def server(answer: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]) -> AsyncIterator[str]:
    """A server that reads the head of a request and then does what `answer` does. Yields its URL."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            await answer(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    listening = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    finally:
        listening.close()


@pytest.mark.parametrize("head", [b"Content-Length: 100\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n4\r\nabcd\r\n"])
def test_response_that_breaks_off_is_an_error(head: bytes) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n" + head + b"4\r\nefgh\r\n")
        await writer.drain()

    async def scenario() -> None:
        async with server(answer) as url:
            caller = Remote(url)
            received = b""
            with pytest.raises(Unreachable, match="cannot be reached"):
                async with caller.stream("GET", "/") as response:
                    async for chunk in response.chunks:
                        received += chunk
            assert b"efgh" in received
            await caller.close()

    run(scenario())


def test_errors_of_the_reader_of_a_stream_stay_as_they_are() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nabcd")

    async def scenario() -> None:
        async with server(answer) as url:
            caller = Remote(url)
            with pytest.raises(ConnectionError, match="of another service"):
                async with caller.stream("GET", "/") as response:
                    async for _ in response.chunks:
                        raise ConnectionError("of another service")
            await caller.close()

    run(scenario())


def test_upload_that_breaks_off_is_not_complete() -> None:
    """The server must not see the end of the body, and the caller sees why it ended."""
    bodies: asyncio.Queue[bytes] = asyncio.Queue()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await bodies.put(await reader.read())

    async def broken() -> AsyncIterator[bytes]:
        yield b"some"
        raise LookupError("no more")

    async def scenario() -> None:
        async with server(answer) as url:
            caller = Remote(url)
            with pytest.raises(LookupError, match="no more"):
                await caller.request("PUT", "/", content=broken())
            assert await bodies.get() == b"4\r\nsome\r\n"
            await caller.close()

    run(scenario())


def test_server_that_ends_during_an_upload_is_unreachable() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(100)
        writer.transport.abort()

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * 65536

    async def scenario() -> None:
        async with server(answer) as url:
            caller = Remote(url)
            with pytest.raises(Unreachable, match="cannot be reached"):
                await caller.request("PUT", "/", content=endless())
            await caller.close()

    run(scenario())


def test_answer_to_an_upload_may_come_late() -> None:
    """The time limit of other requests does not hold for the answer to an upload."""
    is_late = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await is_late.wait()
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")

    async def scenario() -> None:
        async with server(answer) as url:
            caller = Remote(url, timeout=0.2)
            upload = asyncio.create_task(caller.request("PUT", "/", content=chunks_of_body()))
            with pytest.raises(Unreachable, match="TimeoutError"):
                await caller.request("GET", "/")
            is_late.set()
            assert (await upload).status == 204
            await caller.close()

    run(scenario())


def test_long_transfers_do_not_block_other_requests() -> None:
    ended = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n")
        await ended.wait()
        writer.write(b"x")

    async def scenario() -> None:
        async with server(answer) as url:
            caller = Remote(url)

            async def transfer(started: asyncio.Event) -> bytes:
                async with caller.stream("GET", "/") as response:
                    started.set()
                    return b"".join([chunk async for chunk in response.chunks])

            events = [asyncio.Event() for _ in range(150)]
            transfers = [asyncio.create_task(transfer(event)) for event in events]
            async with asyncio.timeout(60):
                await asyncio.gather(*(event.wait() for event in events))
            ended.set()
            assert await asyncio.gather(*transfers) == [b"x"] * 150
            await caller.close()

    run(scenario())
