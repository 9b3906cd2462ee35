"""A cloud whose guests have screens: little servers that greet as a VNC server does, and say the rest back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from unittest.mock import patch
from urllib.parse import parse_qs, urlsplit

from kilonova.console import MOUNT, WEBSOCKET
from kilonova.console.pages import pages
from kilonova.console.proxy import Proxy
from kilonova.hosts.drivers.base import DriverError
from kilonova.hosts.drivers.sim.driver import SimDriver
from kilonova.hosts.messages import Display
from kilonova.http import App
from kilonova.http.server import Server, bind, url_of
from tests.support.whole import Whole, whole

GREETING = b"RFB 003.008\n"


class Screen:
    """What came in, and how many are looking."""

    def __init__(self) -> None:
        self.heard = b""
        self.watching = 0
        self.port = 0

    async def greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.watching += 1
        try:
            writer.write(GREETING)
            while data := await reader.read(65536):
                self.heard += data
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            self.watching -= 1
            writer.close()


@contextmanager
def screens(**shown: Display) -> Iterator[None]:
    """Simulated guests have these displays, by kind."""

    async def look_display(self: Any, guest_id: str, kind: str) -> Display:
        self._running(guest_id)
        if kind not in shown:
            raise DriverError(f"no {kind}", kind="no display")
        return shown[kind]

    with patch.object(SimDriver, "look_display", look_display):
        yield


@asynccontextmanager
async def screen() -> AsyncIterator[Screen]:
    made = Screen()
    server = await asyncio.start_server(made.greet, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    try:
        with screens(vnc=Display(host="127.0.0.1", port=made.port)):
            yield made
    finally:
        server.close()


@asynccontextmanager
async def served(database_url: str, **flags: Any) -> AsyncIterator[tuple[Whole, str]]:
    """The cloud, and its address on a real socket."""
    async with whole(database_url, hosts=1, **flags) as c:
        services = c.services
        apis = c.app.apis.values()
        app = App(
            services,
            apis,
            pages={MOUNT: pages(services.config.console)},
            sockets={f"/{MOUNT}/{WEBSOCKET}": Proxy(services)},
        )
        bound = bind("127.0.0.1", 0)
        server = Server(app, bound)
        await server.start()
        try:
            yield c, url_of(bound)
        finally:
            await server.stop()
            bound.close()


async def link(c: Whole, server_id: str, base: str, **keys: Any) -> str:
    asked = {"remote_console": {"protocol": "vnc", "type": "novnc", **keys}}
    host = {"X-Forwarded-Host": urlsplit(base).netloc}
    answer = await c.post(f"/servers/{server_id}/remote-consoles", asked, version="2.104", headers=host)
    assert answer.status == 200, answer.body
    shown = answer.json()["remote_console"]
    assert {key: shown[key] for key in ("protocol", "type")} == {"protocol": "vnc", "type": "novnc", **keys}
    url: str = shown["url"]
    return url


def socket_of(url: str) -> str:
    """The address of the websocket that noVNC opens when its page has this address."""
    at = urlsplit(url)
    (path,) = parse_qs(at.query)["path"]
    return f"ws://{at.netloc}/{path}"
