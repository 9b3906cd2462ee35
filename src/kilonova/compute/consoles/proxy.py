"""The console websocket: forwards bytes between a browser and a guest's display."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qs, urlsplit

from kilonova import clock
from kilonova.compute.consoles import tokens
from kilonova.hosts.messages import Command, Display
from kilonova.hosts.messages.verbs import GetDisplay
from kilonova.hosts.transport import HostCallError
from kilonova.services import Services
from kilonova.store import Row

log = logging.getLogger(__name__)

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
TIMEOUT_SECONDS = 10.0
# How often the proxy checks that the server still exists on the same host.
SERVER_CHECK_SECONDS = 5.0
CHUNK_BYTES = 65536
CLOSE_REFUSED, CLOSE_NORMAL = 1008, 1000
_SERVER_ON_HOST = "SELECT 1 FROM servers WHERE id = $1 AND host = $2 AND NOT deleted"


class Proxy:
    """An ASGI application for websockets. Requires a valid console token and an allowed origin."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await receive()  # websocket.connect
        streams = None
        row = await self._authorize(scope)
        if row is not None:
            streams = await self._connect(row)
        if row is None or streams is None:
            await send({"type": "websocket.close", "code": CLOSE_REFUSED})
            return
        # Old clients request the binary subprotocol by name. All data is binary.
        subprotocol = "binary" if "binary" in scope.get("subprotocols", ()) else None
        log.info("console opened", extra={"server_id": row["id"]})
        try:
            await send({"type": "websocket.accept", "subprotocol": subprotocol})
            await _run_until_first_ends(
                _forward_to_guest(receive, streams[1]),
                _forward_to_browser(streams[0], send),
                self._wait_until_gone(row),
            )
        finally:
            streams[1].close()
            log.info("console closed", extra={"server_id": row["id"]})
        with suppress(OSError, RuntimeError):  # the browser has disconnected
            await send({"type": "websocket.close", "code": CLOSE_NORMAL})

    async def _authorize(self, scope: Any) -> Row | None:
        """Return the token's server, or None if the token or the origin is refused."""
        headers = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
        token = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])
        if not self._is_allowed_origin(headers):
            log.warning("console refused: the page's origin is not allowed")
            return None
        return await tokens.find_server(self._services.db, token[-1], clock.now())

    def _is_allowed_origin(self, headers: dict[bytes, str]) -> bool:
        """Only browsers send an origin. Other clients are allowed: they need a token as well."""
        origin = headers.get(b"origin")
        if origin is None:
            return True
        config = self._services.config
        known = [headers.get(b"host", ""), headers.get(b"x-forwarded-host", "")]
        known += [urlsplit(url).netloc for url in (config.console.url, config.public_url)]
        allowed = config.cors.allowed_origin
        return (urlsplit(origin).netloc or origin) in filter(None, known) or origin in allowed or "*" in allowed

    async def _connect(self, row: Row) -> Streams | None:
        """Connect to the guest's display on its current host."""
        hosts, host = getattr(self._services, "hosts", None), row["host"]
        if hosts is None or host is None:
            return None
        verb = GetDisplay(guest_id=row["id"], kind=tokens.DISPLAY_BY_TYPE[row["type"]])
        try:
            display: Display = await hosts.call(host, Command(host=host, verb=verb), timeout=TIMEOUT_SECONDS)
            async with asyncio.timeout(TIMEOUT_SECONDS):
                return await asyncio.open_connection(display.host, display.port)
        except (HostCallError, OSError, TimeoutError) as error:
            log.warning("no console: %s", error, extra={"server_id": row["id"]})
            return None

    async def _wait_until_gone(self, row: Row) -> None:
        """Return when the server is deleted or has left the host."""
        while await self._services.db.fetch_value(_SERVER_ON_HOST, row["id"], row["host"]):
            await asyncio.sleep(SERVER_CHECK_SECONDS)


async def _forward_to_guest(receive: Any, writer: asyncio.StreamWriter) -> None:
    while (message := await receive())["type"] == "websocket.receive":
        writer.write(message.get("bytes") or (message.get("text") or "").encode())
        await writer.drain()


async def _forward_to_browser(reader: asyncio.StreamReader, send: Any) -> None:
    while data := await reader.read(CHUNK_BYTES):
        await send({"type": "websocket.send", "bytes": data})


async def _run_until_first_ends(*coroutines: Coroutine[Any, Any, None]) -> None:
    """Run all until one ends or fails, then cancel the others."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, Exception) and not isinstance(result, OSError):
                log.error("a console failed", exc_info=result)
