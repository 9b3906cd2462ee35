"""The websocket of a console: bytes to and fro between a browser and the screen of a guest."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qs, urlsplit

from kilonova import clock
from kilonova.compute.consoles import links
from kilonova.hosts.messages import Command, Display, LookDisplay
from kilonova.hosts.transport import HostTrouble
from kilonova.services import Services
from kilonova.store import Row

log = logging.getLogger(__name__)

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
SECONDS = 10.0
# How often is looked whether the server is still there, and where it was.
LOOK_EVERY = 5.0
CHUNK = 65536
REFUSED, ENDED = 1008, 1000
_THERE = "SELECT 1 FROM servers WHERE id = $1 AND host = $2 AND NOT deleted"


class Proxy:
    """An ASGI application for websockets. Who comes with a link that is good, from a page of ours, gets the screen."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await receive()  # the wish to connect
        streams = None
        row = await self._admitted(scope)
        if row is not None:
            streams = await self._reach(row)
        if row is None or streams is None:
            await send({"type": "websocket.close", "code": REFUSED})
            return
        # Only one kind of content was ever sent, and old pages ask for it by name.
        chosen = "binary" if "binary" in scope.get("subprotocols", ()) else None
        log.info("console opened", extra={"server_id": row["id"]})
        try:
            await send({"type": "websocket.accept", "subprotocol": chosen})
            await _first(_up(receive, streams[1]), _down(streams[0], send), self._until_gone(row))
        finally:
            streams[1].close()
            log.info("console closed", extra={"server_id": row["id"]})
        with suppress(OSError, RuntimeError):  # gone already
            await send({"type": "websocket.close", "code": ENDED})

    async def _admitted(self, scope: Any) -> Row | None:
        """The server whose console may be shown."""
        headers = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
        asked = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])
        if not self._is_ours(headers):
            log.warning("a console was asked for from a page of another origin")
            return None
        return await links.find(self._services.db, asked[-1], clock.now())

    def _is_ours(self, headers: dict[bytes, str]) -> bool:
        """Browsers say whose page asks. Whoever is none says nothing, and needs the link all the same."""
        origin = headers.get(b"origin")
        if origin is None:
            return True
        config = self._services.config
        known = [headers.get(b"host", ""), headers.get(b"x-forwarded-host", "")]
        known += [urlsplit(url).netloc for url in (config.console.url, config.public_url)]
        allowed = config.cors.allowed_origin
        return (urlsplit(origin).netloc or origin) in filter(None, known) or origin in allowed or "*" in allowed

    async def _reach(self, row: Row) -> Streams | None:
        """The guest's screen where it is now; nothing if it cannot be had."""
        hosts, host = getattr(self._services, "hosts", None), row["host"]
        if hosts is None or host is None:
            return None
        verb = LookDisplay(guest_id=row["id"], kind=links.SERVED[row["type"]])
        try:
            display: Display = await hosts.call(host, Command(host=host, verb=verb), timeout=SECONDS)
            async with asyncio.timeout(SECONDS):
                return await asyncio.open_connection(display.host, display.port)
        except (HostTrouble, OSError, TimeoutError) as error:
            log.warning("no console: %s", error, extra={"server_id": row["id"]})
            return None

    async def _until_gone(self, row: Row) -> None:
        while await self._services.db.fetch_value(_THERE, row["id"], row["host"]):
            await asyncio.sleep(LOOK_EVERY)


async def _up(receive: Any, writer: asyncio.StreamWriter) -> None:
    """From the browser."""
    while (message := await receive())["type"] == "websocket.receive":
        writer.write(message.get("bytes") or (message.get("text") or "").encode())
        await writer.drain()


async def _down(reader: asyncio.StreamReader, send: Any) -> None:
    """To the browser."""
    while data := await reader.read(CHUNK):
        await send({"type": "websocket.send", "bytes": data})


async def _first(*ways: Coroutine[Any, Any, None]) -> None:
    """Until one of them ends, however it does."""
    tasks = [asyncio.create_task(way) for way in ways]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, Exception) and not isinstance(result, OSError):
                log.error("a console broke off", exc_info=result)
