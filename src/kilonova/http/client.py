"""HTTP client with one interface for services in this process (no sockets) and over the network."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

import orjson

from kilonova.telemetry.context import outgoing_request_id

if TYPE_CHECKING:
    import ssl
    from contextlib import AbstractAsyncContextManager

    import aiohttp


# Idle connections are closed after this time. Common servers close theirs after five seconds.
IDLE_SECONDS = 4.0


# An upload is answered when the service has stored all data, which may take long after the last byte.
UPLOAD_ANSWER_SECONDS = 600.0


class Unreachable(Exception):
    """The service could not be reached. A retry may succeed."""

    passing = True


@contextmanager
def valid_response(service: str) -> Iterator[None]:
    """Turn errors of decoding a response into Unreachable. Also a decorator of a function that decodes."""
    try:
        yield
    except (KeyError, ValueError):
        raise Unreachable(f"the {service} service sent an invalid response") from None


class Refused(Exception):
    """The service refused the request with this status and message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class ClientResponse:
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
        json: object = None,
        content: bytes | AsyncIterator[bytes] | None = None,
    ) -> ClientResponse: ...

    def stream(
        self, method: str, path: str, *, headers: Mapping[str, str] | None = None
    ) -> AbstractAsyncContextManager[StreamResponse]: ...


class InProcess:
    """Calls an ASGI application directly. `prefix` is the API's mount point, `host` the host of its links."""

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
        json: object = None,
        content: bytes | AsyncIterator[bytes] | None = None,
    ) -> ClientResponse:
        encoded = self._headers(headers)
        if json is not None:
            content = orjson.dumps(json)
            encoded.append((b"content-type", b"application/json"))
        start: dict[str, Any] = {}
        chunks: list[bytes] = []
        is_complete = False

        async def send(message: dict[str, Any]) -> None:
            nonlocal is_complete
            if message["type"] == "http.response.start":
                start.update(message)
            else:
                chunks.append(message.get("body", b""))
                is_complete = not message.get("more_body", False)

        body = _Body(content)
        # In a separate task, so that the context variables it sets do not leak to the caller.
        await asyncio.create_task(self.app(self._scope(method, path, encoded), body.receive, send))
        if body.error is not None:
            raise body.error
        if not is_complete:
            raise self._incomplete()
        return ClientResponse(start["status"], _decode_headers(start["headers"]), b"".join(chunks))

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
            # A reader that has seen the end of the response does not see this error.
            if not started.done():
                started.set_exception(self._incomplete())
            await queue.put(self._incomplete())

        async def chunks() -> AsyncIterator[bytes]:
            while (chunk := await queue.get()) is not None:
                if isinstance(chunk, Unreachable):
                    raise chunk
                yield chunk

        task = asyncio.create_task(call())
        try:
            start = await started
            yield StreamResponse(start["status"], _decode_headers(start["headers"]), chunks())
        finally:
            task.cancel()
            await asyncio.wait([task])

    def _incomplete(self) -> Unreachable:
        return Unreachable(f"{self.prefix or 'the service'} did not complete its response")

    def _headers(self, headers: Mapping[str, str] | None) -> list[tuple[bytes, bytes]]:
        sent = {"host": self.host} | {name.lower(): value for name, value in _with_request_id(headers).items()}
        return [(name.encode(), value.encode("latin-1")) for name, value in sent.items()]

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
    """Calls a service over the network. `tls` verifies it (None: by the system's authorities)."""

    def __init__(self, base_url: str, timeout: float = 30.0, tls: ssl.SSLContext | None = None) -> None:
        """`timeout` limits the time to connect, and the time between two parts of a response."""
        import aiohttp
        import yarl

        from kilonova.certificates import client_context

        if tls is None and base_url.startswith("https:"):
            tls = client_context(None)
        self._aiohttp, self._url = aiohttp, yarl.URL
        self._base_url = base_url.rstrip("/")
        self._tls = tls
        self._timeout = timeout
        # Created by the first request, in its event loop.
        self._session: aiohttp.ClientSession | None = None
        self.host = urlsplit(base_url).netloc

    async def request(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        json: object = None,
        content: bytes | AsyncIterator[bytes] | None = None,
    ) -> ClientResponse:
        sent = _with_request_id(headers)
        if json is not None:
            content = orjson.dumps(json)
            sent["Content-Type"] = "application/json"
        body = content if content is None or isinstance(content, bytes) else _Upload(content)
        try:
            async with asyncio.timeout(None) as limit:
                if isinstance(body, _Upload):
                    body.limit = limit
                async with self._send(method, path, sent, body) as response:
                    return ClientResponse(response.status, _lower_names(response.headers), await response.read())
        except (self._aiohttp.ClientError, TimeoutError, OSError) as error:
            if isinstance(body, _Upload) and body.error is not None:
                raise body.error from None
            raise self._unreachable(error) from error

    @asynccontextmanager
    async def stream(
        self, method: str, path: str, *, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[StreamResponse]:
        try:
            response = await self._send(method, path, _with_request_id(headers), None)
        except (self._aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._unreachable(error) from error
        async with response:
            yield StreamResponse(response.status, _lower_names(response.headers), self._chunks(response))

    async def _chunks(self, response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
        """The body. A connection that ends too early is an error."""
        try:
            async for chunk in response.content.iter_any():
                yield chunk
        except (self._aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._unreachable(error) from error

    def _send(
        self, method: str, path: str, headers: dict[str, str], content: bytes | _Upload | None
    ) -> aiohttp.client._RequestContextManager:
        if self._session is None:
            self._session = self._make_session()
        url = self._url(self._base_url + path, encoded=True)
        is_upload = isinstance(content, _Upload)
        read_timeout = max(self._timeout, UPLOAD_ANSWER_SECONDS) if is_upload else self._timeout
        timeout = self._aiohttp.ClientTimeout(total=None, sock_connect=self._timeout, sock_read=read_timeout)
        return self._session.request(method, url, headers=headers, data=content, allow_redirects=False, timeout=timeout)

    def _make_session(self) -> aiohttp.ClientSession:
        # Without a limit of connections: short requests do not wait for transfers of images.
        connector = self._aiohttp.TCPConnector(limit=0, ssl=self._tls or True, keepalive_timeout=IDLE_SECONDS)
        return self._aiohttp.ClientSession(connector=connector, cookie_jar=self._aiohttp.DummyCookieJar())

    def _unreachable(self, error: Exception) -> Unreachable:
        return Unreachable(f"{self.host} cannot be reached: {type(error).__name__}")

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()


class _Upload:
    """A request body. If producing it fails, the request breaks off, and `error` has the reason.

    `limit` ends a request whose service does not read the body, or does not answer after its end.
    """

    def __init__(self, content: AsyncIterator[bytes]) -> None:
        self._content = content
        self.error: Exception | None = None
        self.limit: asyncio.Timeout | None = None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        try:
            async for chunk in self._content:
                if self.limit is not None:
                    self.limit.reschedule(loop.time() + UPLOAD_ANSWER_SECONDS)
                yield chunk
                if self.limit is not None:
                    self.limit.reschedule(None)  # until the source has the next chunk
            if self.limit is not None:
                self.limit.reschedule(loop.time() + UPLOAD_ANSWER_SECONDS)
        except Exception as error:
            self.error = error
            raise


def _lower_names(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def _with_request_id(headers: Mapping[str, str] | None) -> dict[str, str]:
    """The headers, with the id of the request that causes this one."""
    request_id = outgoing_request_id()
    return {**({"X-OpenStack-Request-ID": request_id} if request_id else {}), **(headers or {})}


class _Body:
    """The request body for an application in this process, which is read once. The caller never disconnects.

    If producing the body fails, the application sees a disconnect, and `error` has the reason.
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


def _decode_headers(headers: list[tuple[bytes, bytes]]) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
