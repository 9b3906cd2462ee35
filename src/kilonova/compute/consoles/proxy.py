"""The console websocket: forwards bytes between a browser and a guest's display."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress
from typing import NotRequired, TypedDict
from urllib.parse import parse_qs, urlsplit

from kilonova import clock
from kilonova.compute.consoles import tokens
from kilonova.compute.consoles.tokens import Console
from kilonova.compute.host_calls import query
from kilonova.compute.servers.server import Server
from kilonova.hosts.display_sessions import READ_WAIT_SECONDS
from kilonova.hosts.messages import Command
from kilonova.hosts.messages.verbs import Answer, CloseDisplay, OpenDisplay, Query, ReadDisplay, WriteDisplay
from kilonova.hosts.transport import HostCallError
from kilonova.http import audit
from kilonova.http.errors import Forbidden, HttpError, Unavailable
from kilonova.http.origin import Origin, request_origin
from kilonova.http.rate_limits import rate_limits_of
from kilonova.services import Services
from kilonova.store import StoreError

log = logging.getLogger(__name__)


# What the proxy uses of ASGI.
class Received(TypedDict):
    type: str
    bytes: NotRequired[bytes | None]
    text: NotRequired[str | None]


Receive = Callable[[], Awaitable[Received]]
Send = Callable[[dict[str, object]], Awaitable[None]]


class Scope(TypedDict):
    headers: Iterable[tuple[bytes, bytes]]
    query_string: bytes
    client: NotRequired[tuple[str, int] | None]
    scheme: NotRequired[str]
    subprotocols: NotRequired[Iterable[str]]


# How often the proxy checks that the server still exists on the same host.
SERVER_CHECK_SECONDS = 5.0
# A read lasts longer than other queries.
_READ_TIMEOUT_SECONDS = READ_WAIT_SECONDS + 10
CLOSE_REFUSED, CLOSE_NORMAL = 1008, 1000
# The status of the response that opens a websocket.
_OPENED = 101
_SERVER_ON_HOST = "SELECT 1 FROM servers WHERE id = $1 AND host = $2 AND NOT deleted"


class Proxy:
    """An ASGI application for websockets. Requires a valid console token and an allowed origin."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()  # websocket.connect
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        origin = request_origin(scope, headers, self._services.config.trusted_proxies)
        console = display = None
        try:
            console = await self._authorize(scope, headers, origin)
            display = await self._open(console)
        except (HttpError, StoreError) as error:
            refusal = error if isinstance(error, HttpError) else Unavailable("the database does not answer")
            self._audit(origin, console, refusal.status, refusal.message)
            await send({"type": "websocket.close", "code": CLOSE_REFUSED})
            return
        self._audit(origin, console, _OPENED)
        # Old clients request the binary subprotocol by name. All data is binary.
        subprotocol = "binary" if "binary" in scope.get("subprotocols", ()) else None
        log.info("console opened", extra={"server_id": console.server.id})
        try:
            await send({"type": "websocket.accept", "subprotocol": subprotocol})
            await _run_until_first_ends(
                _forward_to_guest(receive, display),
                _forward_to_browser(display, send),
                self._wait_until_server_leaves(console.server),
            )
        finally:
            await display.close()
            log.info("console closed", extra={"server_id": console.server.id})
        with suppress(OSError, RuntimeError):  # the browser has disconnected
            await send({"type": "websocket.close", "code": CLOSE_NORMAL})

    async def _authorize(self, scope: Scope, headers: dict[str, str], origin: Origin) -> Console:
        """Return the token's console. Raises Forbidden or TooManyRequests."""
        rate_limits_of(self._services).count_address(origin.address)
        if not self._is_allowed_page(headers, origin):
            log.warning("console refused: the page's origin is not allowed")
            raise Forbidden("the page's origin is not allowed")
        token = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])
        console = await tokens.find_console(self._services.db, token[-1], clock.now())
        if console is None:
            raise Forbidden("the token is not valid")
        return console

    def _is_allowed_page(self, headers: dict[str, str], origin: Origin) -> bool:
        """Only browsers send the origin of a page. Other clients are allowed: they need a token as well."""
        page = headers.get("origin")
        if page is None:
            return True
        config = self._services.config
        known = [origin.host, *(urlsplit(url).netloc for url in (config.console.url, config.public_url))]
        allowed = config.cors.allowed_origin
        try:
            host = urlsplit(page).netloc or page
        except ValueError:
            return False
        return host in filter(None, known) or page in allowed or "*" in allowed

    async def _open(self, console: Console) -> _Display:
        """Connect to the guest's display on its current host. Raises Forbidden."""
        host, server_id = console.server.host, console.server.id
        if host is None or getattr(self._services, "hosts", None) is None:
            raise Forbidden("the server is on no host")
        verb = OpenDisplay(guest_id=server_id, kind=tokens.DISPLAY_BY_TYPE[console.type])
        try:
            return _Display(self._services, host, await query(self._services, host, verb))
        except HostCallError as error:
            log.warning("no console: %s", error, extra={"server_id": server_id})
            raise Forbidden("the display is not available") from None

    def _audit(self, origin: Origin, console: Console | None, code: int, text: str = "") -> None:
        initiator, target = {"address": origin.address}, {"type": "compute/servers/remote-consoles"}
        if console is not None:
            initiator["id"] = console.user_id
            target |= {"id": console.server.id, "project_id": console.server.project_id}
        audit.write(
            self._services.audit,
            "compute",
            action="connect",
            initiator=initiator,
            target=target,
            reason={"code": code, **({"text": text} if text else {})},
            request_id=f"req-{uuid.uuid4()}",
        )

    async def _wait_until_server_leaves(self, server: Server) -> None:
        """Return when the server is deleted or has left the host."""
        while await self._services.db.fetch_value(_SERVER_ON_HOST, server.id, server.host):
            await asyncio.sleep(SERVER_CHECK_SECONDS)


class _Display:
    """A session with a guest's display. A lost answer loses data, so every failed call ends the console."""

    def __init__(self, services: Services, host: str, session_id: str) -> None:
        self._services = services
        self._host = host
        self._session_id = session_id

    async def read(self) -> bytes | None:
        """Return data, or None after the session has ended."""
        return await self._call(ReadDisplay(session_id=self._session_id))

    async def write(self, data: bytes) -> None:
        await self._call(WriteDisplay(session_id=self._session_id, data=data))

    async def close(self) -> None:
        with suppress(HostCallError):  # the session then ends by itself
            await query(self._services, self._host, CloseDisplay(session_id=self._session_id))

    async def _call(self, verb: Query[Answer]) -> Answer:
        command = Command(host=self._host, verb=verb)
        return await self._services.hosts.call(self._host, command, timeout=_READ_TIMEOUT_SECONDS)


async def _forward_to_guest(receive: Receive, display: _Display) -> None:
    while (message := await receive())["type"] == "websocket.receive":
        await display.write(message.get("bytes") or (message.get("text") or "").encode())


async def _forward_to_browser(display: _Display, send: Send) -> None:
    while (data := await display.read()) is not None:
        if data:
            await send({"type": "websocket.send", "bytes": data})


async def _run_until_first_ends(*coroutines: Coroutine[object, None, None]) -> None:
    """Run all until one ends or fails, then cancel the others."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, Exception) and not isinstance(result, OSError | HostCallError):
                log.error("a console failed", exc_info=result)
