"""A cloud whose guests have displays: servers that greet like a VNC server, and echo the rest."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from unittest.mock import patch
from urllib.parse import parse_qs, urlsplit

from kilonova.compute.consoles.novnc_files import novnc_pages
from kilonova.compute.consoles.proxy import Proxy
from kilonova.compute.consoles.tokens import MOUNT, WEBSOCKET
from kilonova.hosts.drivers.base import DriverError, MissingDisplay
from kilonova.hosts.drivers.sim.driver import SimDriver
from kilonova.http import App
from kilonova.http.monitoring_endpoints import monitoring_endpoints
from kilonova.http.server import Server, listen, socket_url
from tests.support.full_cloud import FullCloud, full_cloud

GREETING = b"RFB 003.008\n"


class FakeDisplay:
    """An echo server. Records the received bytes and the number of clients."""

    def __init__(self) -> None:
        self.received = b""
        self.clients = 0
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.clients += 1
        try:
            writer.write(GREETING)
            while data := await reader.read(65536):
                self.received += data
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            self.clients -= 1
            writer.close()


@contextmanager
def fake_displays(**ports: int) -> Iterator[None]:
    """Give simulated guests displays of these kinds, at ports of this machine."""

    async def check_display(self: Any, guest_id: str, kind: str) -> None:
        self._running_guest(guest_id)
        if kind not in ports:
            raise MissingDisplay(f"no {kind}")

    async def open_display(self: Any, guest_id: str, kind: str) -> socket.socket:
        await check_display(self, guest_id, kind)
        try:
            return socket.create_connection(("127.0.0.1", ports[kind]))
        except OSError as error:
            raise DriverError(f"the display does not respond: {error}") from None

    with patch.multiple(SimDriver, check_display=check_display, open_display=open_display):
        yield


@asynccontextmanager
async def fake_display() -> AsyncIterator[FakeDisplay]:
    made = FakeDisplay()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    try:
        with fake_displays(vnc=made.port):
            yield made
    finally:
        server.close()


@asynccontextmanager
async def served(
    database_url: str, *, tls: ssl.SSLContext | None = None, **flags: Any
) -> AsyncIterator[tuple[FullCloud, str]]:
    """Run a cloud on a real socket. Yields the cloud and its URL."""
    async with full_cloud(database_url, hosts=1, **flags) as c:
        services = c.services
        apis = c.app.apis.values()
        app = App(
            services,
            apis,
            monitoring_endpoints(services, lambda: True, ()),
            pages={MOUNT: novnc_pages(services.config.console)},
            sockets={f"/{MOUNT}/{WEBSOCKET}": Proxy(services)},
        )
        bound = listen("127.0.0.1", 0)
        server = Server(app, bound, tls)
        await server.start()
        try:
            yield c, socket_url(bound, "https" if tls else "http")
        finally:
            await server.stop()
            bound.close()


async def console_url(c: FullCloud, server_id: str, base: str, **keys: Any) -> str:
    body = {"remote_console": {"protocol": "vnc", "type": "novnc", **keys}}
    host = {"Host": urlsplit(base).netloc}
    answer = await c.post(f"/servers/{server_id}/remote-consoles", body, version="2.104", headers=host)
    assert answer.status == 200, answer.body
    shown = answer.json()["remote_console"]
    assert {key: shown[key] for key in ("protocol", "type")} == {"protocol": "vnc", "type": "novnc", **keys}
    url: str = shown["url"]
    return url


def websocket_url(url: str) -> str:
    """Return the URL of the websocket that noVNC opens from a page with this URL."""
    at = urlsplit(url)
    (path,) = parse_qs(at.query)["path"]
    return f"{'wss' if at.scheme == 'https' else 'ws'}://{at.netloc}/{path}"
