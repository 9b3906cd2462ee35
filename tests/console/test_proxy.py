"""The screens of guests through websockets."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import patch

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from kilonova.console import proxy
from kilonova.hosts.messages import Display
from tests.compute.servers.support import act
from tests.console.support import GREETING, Screen, link, screen, screens, served, socket_of
from tests.support import run
from tests.support.ports import free_port
from tests.support.whole import PATIENCE

BINARY: dict[str, Any] = {"subprotocols": ["binary"], "compression": None, "proxy": None, "open_timeout": 60}


async def refused(url: str, **options: Any) -> int:
    with pytest.raises(InvalidStatus) as caught:
        async with connect(url, proxy=None, open_timeout=60, **options):
            pass
    return caught.value.response.status_code


async def ended(socket: ClientConnection) -> None:
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(ConnectionClosed):
            while True:
                await socket.recv()


async def unwatched(seen: Screen) -> None:
    async with asyncio.timeout(PATIENCE):
        while seen.watching:
            await asyncio.sleep(0.01)


def test_bytes_go_to_and_fro(database_url: str) -> None:
    async def scenario() -> None:
        async with served(database_url) as (c, base), screen() as seen:
            server_id = (await c.active())["id"]
            url = await link(c, server_id, base)
            assert url.startswith(f"{base}/console/vnc_auto.html?path=console%2Fwebsocket%3Ftoken%3D")
            async with connect(socket_of(url), origin=base, **BINARY) as socket:  # type: ignore[arg-type]
                assert socket.subprotocol == "binary"
                assert await socket.recv() == GREETING
                await socket.send(b"\x00\xff" * 3)
                assert await socket.recv() == b"\x00\xff" * 3
                large = bytes(range(256)) * 4096 * 3
                sending = asyncio.create_task(socket.send(large))
                came = b""
                async with asyncio.timeout(PATIENCE):
                    while len(came) < len(large):
                        came += await socket.recv()  # type: ignore[operator]
                    await sending
                assert came == large
                assert seen.watching == 1
            await unwatched(seen)
            # A link is good for as long as it lasts, so that a page may be loaded again.
            async with connect(socket_of(url), proxy=None, open_timeout=60) as again:
                assert (await again.recv(), again.subprotocol) == (GREETING, None)

    run(scenario())


def test_who_is_refused(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with served(sqlite_url) as (c, base), screen() as seen:
            server_id = (await c.active())["id"]
            url = socket_of(await link(c, server_id, base))
            assert await refused(url + "0") == 403
            assert await refused(url.partition("?")[0]) == 403
            assert await refused(url.replace("/websocket", "/other")) == 403
            assert await refused(url, origin="http://elsewhere.example") == 403
            async with c.db.transaction() as tx:
                await tx.execute("UPDATE console_tokens SET expires_at = 1")
            assert await refused(url) == 403
            assert seen.watching == 0
            kept = await c.db.fetch("SELECT * FROM console_tokens")
            assert url.rpartition("=")[2] not in str(kept)

    run(scenario())


def test_a_console_ends_with_its_server(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with served(sqlite_url) as (c, base), screen() as seen:
            first, second = (await c.active())["id"], (await c.active())["id"]
            with patch.object(proxy, "LOOK_EVERY", 0.02):
                async with connect(socket_of(await link(c, first, base)), **BINARY) as socket:
                    assert await socket.recv() == GREETING
                    await c.delete(f"/servers/{first}")
                    await ended(socket)
            url = socket_of(await link(c, second, base))
            await act(c, second, "os-stop")
            await c.settled(second)
            assert await refused(url) == 403
            await unwatched(seen)

    run(scenario())


def test_a_screen_that_is_not_there(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with served(sqlite_url) as (c, base):
            server_id = (await c.active())["id"]
            with screens(vnc=Display(host="127.0.0.1", port=free_port())):
                assert await refused(socket_of(await link(c, server_id, base))) == 403

    run(scenario())


def test_the_process_does_not_wait_for_consoles_when_it_stops(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kilonova.http.server.GRACE_SECONDS", 300)

    async def scenario() -> None:
        async with served(sqlite_url) as (c, base), screen():
            server_id = (await c.active())["id"]
            socket = await connect(socket_of(await link(c, server_id, base)), **BINARY)
            assert await socket.recv() == GREETING
            began = asyncio.get_running_loop().time()
        assert asyncio.get_running_loop().time() - began < 60
        await ended(socket)

    run(scenario())
