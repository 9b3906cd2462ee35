"""The HTTP client for APIs in the same process, with and without streams."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from kilonova.http import Api, Context, Response
from kilonova.http.client import InProcess
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
