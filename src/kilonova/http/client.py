"""Calling an HTTP API: inside the process without sockets, or over the network, behind one interface."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

import orjson

from kilonova.telemetry.context import passed_on

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager


class Unreachable(Exception):
    """The service could not be asked; trying again may help."""

    passing = True


class Refused(Exception):
    """The service refused: `status` of its answer, and its message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Response:
    __slots__ = ("body", "headers", "status")

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    def json(self) -> Any:
        return orjson.loads(self.body)


class StreamResponse:
    __slots__ = ("chunks", "headers", "status")

    def __init__(self, status: int, headers: dict[str, str], chunks: AsyncIterator[bytes]) -> None:
        self.status = status
        self.headers = headers
        self.chunks = chunks


class Caller(Protocol):
    async def request(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        json: Any = None,
        content: bytes | AsyncIterator[bytes] | None = None,
    ) -> Response: ...

    def stream(
        self, method: str, path: str, *, headers: Mapping[str, str] | None = None
    ) -> AbstractAsyncContextManager[StreamResponse]: ...


class InProcess:
    """Calls an ASGI application directly. `prefix` is the API's mount, `host` what its links will name."""

    def __init__(self, app: Any, prefix: str = "", host: str = "localhost") -> None:
        self.app = app
        self.prefix = prefix
        self.host = host

    async def request(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        json: Any = None,
        content: bytes | AsyncIterator[bytes] | None = None,
    ) -> Response:
        wire = self._headers(headers)
        if json is not None:
            content = orjson.dumps(json)
            wire.append((b"content-type", b"application/json"))
        start: dict[str, Any] = {}
        chunks: list[bytes] = []
        is_whole = False

        async def send(message: dict[str, Any]) -> None:
            nonlocal is_whole
            if message["type"] == "http.response.start":
                start.update(message)
            else:
                chunks.append(message.get("body", b""))
                is_whole = not message.get("more_body", False)

        body = _Body(content)
        # A task of its own, so that what the call sets in context variables does not leak to the caller.
        await asyncio.create_task(self.app(self._scope(method, path, wire), body.receive, send))
        if body.error is not None:
            raise body.error
        if not is_whole:
            raise self._broken()
        return Response(start["status"], _text(start["headers"]), b"".join(chunks))

    @asynccontextmanager
    async def stream(
        self, method: str, path: str, *, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[StreamResponse]:
        started: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        queue: asyncio.Queue[bytes | Unreachable | None] = asyncio.Queue(maxsize=4)

        async def send(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                started.set_result(message)
                return
            if message.get("body"):
                await queue.put(message["body"])
            if not message.get("more_body", False):
                await queue.put(None)

        async def call() -> None:
            await self.app(self._scope(method, path, self._headers(headers)), _Body(None).receive, send)
            # Whoever has got the end of the answer never sees this.
            if not started.done():
                started.set_exception(self._broken())
            await queue.put(self._broken())

        async def chunks() -> AsyncIterator[bytes]:
            while (chunk := await queue.get()) is not None:
                if isinstance(chunk, Unreachable):
                    raise chunk
                yield chunk

        task = asyncio.create_task(call())
        try:
            start = await started
            yield StreamResponse(start["status"], _text(start["headers"]), chunks())
        finally:
            task.cancel()
            await asyncio.wait([task])

    def _broken(self) -> Unreachable:
        return Unreachable(f"{self.prefix or 'the service'} broke off its answer")

    def _headers(self, headers: Mapping[str, str] | None) -> list[tuple[bytes, bytes]]:
        wire = [(b"host", self.host.encode())]
        wire += [(name.lower().encode(), value.encode("latin-1")) for name, value in _with_chain(headers).items()]
        return wire

    def _scope(self, method: str, path: str, headers: list[tuple[bytes, bytes]]) -> dict[str, Any]:
        plain, _, query = (self.prefix + path).partition("?")
        return {
            "type": "http",
            "method": method,
            "path": plain,
            "raw_path": plain.encode(),
            "query_string": query.encode(),
            "headers": headers,
        }


class Remote:
    """Calls a service over the network."""

    def __init__(self, base_url: str, timeout: float = 30.0) -> None:
        import httpx

        self._http = httpx
        self._client = httpx.AsyncClient(base_url=base_url, timeout=timeout)
        self.host = urlsplit(base_url).netloc

    async def request(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        json: Any = None,
        content: bytes | AsyncIterator[bytes] | None = None,
    ) -> Response:
        sent = _with_chain(headers)
        if json is not None:
            content = orjson.dumps(json)
            sent["Content-Type"] = "application/json"
        try:
            answer = await self._client.request(method, path, headers=sent, content=content)
        except self._http.HTTPError as error:
            raise Unreachable(f"{self.host} cannot be reached: {type(error).__name__}") from error
        return Response(answer.status_code, dict(answer.headers), answer.content)

    @asynccontextmanager
    async def stream(
        self, method: str, path: str, *, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[StreamResponse]:
        try:
            async with self._client.stream(method, path, headers=_with_chain(headers)) as answer:
                yield StreamResponse(answer.status_code, dict(answer.headers), answer.aiter_bytes())
        except self._http.HTTPError as error:
            raise Unreachable(f"{self.host} cannot be reached: {type(error).__name__}") from error

    async def close(self) -> None:
        await self._client.aclose()


def _with_chain(headers: Mapping[str, str] | None) -> dict[str, str]:
    """The headers, and by which request of ours this one is caused."""
    chain = passed_on()
    return {**({"X-OpenStack-Request-ID": chain} if chain else {}), **(headers or {})}


class _Body:
    """What the application reads: the body once, then nothing more, for a caller in this process never hangs up.

    Unless the body itself cannot be made: then the caller is gone for the application, and `error` says why.
    """

    def __init__(self, content: bytes | AsyncIterator[bytes] | None) -> None:
        self._content = content
        self._ended = False
        self.error: Exception | None = None

    async def receive(self) -> dict[str, Any]:
        if self._ended:
            await asyncio.Event().wait()
        content = self._content
        if content is not None and not isinstance(content, bytes):
            try:
                async for chunk in content:
                    return {"type": "http.request", "body": chunk, "more_body": True}
            except Exception as error:
                self._ended, self.error = True, error
                return {"type": "http.disconnect"}
        self._ended = True
        return {"type": "http.request", "body": content if isinstance(content, bytes) else b"", "more_body": False}


def _text(headers: list[tuple[bytes, bytes]]) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
