"""The console proxy: guests' displays through websockets."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from kilonova.certificates import ServerCertificate
from kilonova.compute.consoles import proxy
from kilonova.config import Api as Settings
from kilonova.http.rate_limits import RateLimits
from tests.compute.consoles.support import (
    GREETING,
    FakeDisplay,
    console_url,
    fake_display,
    fake_displays,
    served,
    websocket_url,
)
from tests.compute.servers.support import act
from tests.support import run
from tests.support.audit import recorded_events
from tests.support.certificates import Authority
from tests.support.full_cloud import TIMEOUT_SECONDS
from tests.support.ports import free_port

BINARY: dict[str, Any] = {"subprotocols": ["binary"], "compression": None, "proxy": None, "open_timeout": 60}


async def refused_status(url: str, **options: Any) -> int:
    with pytest.raises(InvalidStatus) as caught:
        async with connect(url, proxy=None, open_timeout=60, **options):
            pass
    return caught.value.response.status_code


async def wait_closed(socket: ClientConnection) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        with pytest.raises(ConnectionClosed):
            while True:
                await socket.recv()


async def wait_without_clients(display: FakeDisplay) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while display.clients:
            await asyncio.sleep(0.01)


def test_bytes_are_forwarded_both_ways(database_url: str) -> None:
    async def scenario() -> None:
        async with served(database_url) as (c, base), fake_display() as display:
            server_id = (await c.boot_active())["id"]
            url = await console_url(c, server_id, base)
            assert url.startswith(f"{base}/console/vnc_auto.html?path=console%2Fwebsocket%3Ftoken%3D")
            async with connect(websocket_url(url), origin=base, **BINARY) as socket:  # type: ignore[arg-type]
                assert socket.subprotocol == "binary"
                assert await socket.recv() == GREETING
                await socket.send(b"\x00\xff" * 3)
                assert await socket.recv() == b"\x00\xff" * 3
                large = bytes(range(256)) * 4096 * 3
                sending = asyncio.create_task(socket.send(large))
                received = b""
                async with asyncio.timeout(TIMEOUT_SECONDS):
                    while len(received) < len(large):
                        received += await socket.recv()  # type: ignore[operator]
                    await sending
                assert received == large
                assert display.clients == 1
            await wait_without_clients(display)
            # The token is valid until it expires, so that the page can be reloaded.
            async with connect(websocket_url(url), proxy=None, open_timeout=60) as again:
                assert (await again.recv(), again.subprotocol) == (GREETING, None)

    run(scenario())


def test_consoles_use_tls(sqlite_url: str, tmp_path: Path) -> None:
    files = Authority().issue(tmp_path, "127.0.0.1")
    certificate = ServerCertificate(files / "server-cert.pem", files / "server-key.pem")
    trusting = ssl.create_default_context(cafile=files / "ca-cert.pem")

    async def scenario() -> None:
        async with served(sqlite_url, tls=certificate.context) as (c, base), fake_display() as display:
            c.services.config.public_url = base
            server_id = (await c.boot_active())["id"]
            url = await console_url(c, server_id, base)
            assert url.startswith(f"{base}/console/vnc_auto.html?")
            assert base.startswith("https://")
            with fake_displays(serial=display.port):
                serial_url = await console_url(c, server_id, base, protocol="serial", type="serial")
                assert serial_url.startswith("wss://")
                for kind, websocket in (("vnc", websocket_url(url)), ("serial", serial_url)):
                    with fake_displays(**{kind: display.port}):
                        async with connect(websocket, ssl=trusting, origin=base, **BINARY) as socket:  # type: ignore[arg-type]
                            assert await socket.recv() == GREETING
                            await socket.send(b"\x00\xff" * 3)
                            assert await socket.recv() == b"\x00\xff" * 3

    run(scenario())


def test_invalid_token_or_origin_is_refused(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with served(sqlite_url) as (c, base), fake_display() as display:
            server_id = (await c.boot_active())["id"]
            url = websocket_url(await console_url(c, server_id, base))
            assert await refused_status(url + "0") == 403
            assert await refused_status(url.partition("?")[0]) == 403
            assert await refused_status(url.replace("/websocket", "/other")) == 403
            assert await refused_status(url, origin="http://elsewhere.example") == 403
            async with c.db.transaction() as tx:
                await tx.execute("UPDATE console_tokens SET expires_at = 1")
            assert await refused_status(url) == 403
            assert display.clients == 0
            kept = await c.db.fetch("SELECT * FROM console_tokens")
            assert url.rpartition("=")[2] not in str(kept)

    run(scenario())


def test_opened_and_refused_consoles_are_recorded(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with served(sqlite_url) as (c, base), fake_display():
            server = await c.boot_active()
            url = websocket_url(await console_url(c, server["id"], base))
            with recorded_events(c.services) as events:
                async with connect(url, **BINARY):
                    pass
                await refused_status(url + "0")
                await refused_status(url, origin="http://elsewhere.example")
                await refused_status(url, origin="http://[")
                with fake_displays(vnc=free_port()):
                    await refused_status(url)
            assert {event["action"] for event in events} == {"connect"}
            assert {event["initiator"]["address"] for event in events} == {"127.0.0.1"}
            target = {"id": server["id"], "project_id": server["tenant_id"]}
            found = [(event["target"].items() >= target.items(), event["reason"]) for event in events]
            assert found == [
                (True, {"code": 101}),
                (False, {"code": 403, "text": "the token is not valid"}),
                (False, {"code": 403, "text": "the page's origin is not allowed"}),
                (False, {"code": 403, "text": "the page's origin is not allowed"}),
                (True, {"code": 403, "text": "the display is not available"}),
            ]
            assert events[0]["initiator"]["id"] == server["user_id"]
            assert url.rpartition("=")[2] not in str(events)

    run(scenario())


def test_attempts_count_for_the_address(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with served(sqlite_url) as (c, base):
            c.services.rate_limits = RateLimits(Settings(requests_per_second_per_address=0.1))
            c.services.rate_limits.count_address("127.0.0.1")
            with recorded_events(c.services) as events:
                assert await refused_status(base.replace("http", "ws") + "/console/websocket?token=0") == 403
            assert [event["reason"]["code"] for event in events] == [429]

    run(scenario())


def test_console_closes_when_server_is_deleted_or_stopped(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with served(sqlite_url) as (c, base), fake_display() as display:
            first, second = (await c.boot_active())["id"], (await c.boot_active())["id"]
            with patch.object(proxy, "SERVER_CHECK_SECONDS", 0.02):
                async with connect(websocket_url(await console_url(c, first, base)), **BINARY) as socket:
                    assert await socket.recv() == GREETING
                    await c.delete(f"/servers/{first}")
                    await wait_closed(socket)
            url = websocket_url(await console_url(c, second, base))
            await act(c, second, "os-stop")
            await c.wait_until_settled(second)
            assert await refused_status(url) == 403
            await wait_without_clients(display)

    run(scenario())


def test_unreachable_display_is_refused(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with served(sqlite_url) as (c, base):
            server_id = (await c.boot_active())["id"]
            with fake_displays(vnc=free_port()):
                assert await refused_status(websocket_url(await console_url(c, server_id, base))) == 403

    run(scenario())


def test_stop_does_not_wait_for_consoles(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kilonova.http.server.SHUTDOWN_GRACE_SECONDS", 300)

    async def scenario() -> None:
        async with served(sqlite_url) as (c, base), fake_display():
            server_id = (await c.boot_active())["id"]
            socket = await connect(websocket_url(await console_url(c, server_id, base)), **BINARY)
            assert await socket.recv() == GREETING
            began = asyncio.get_running_loop().time()
        assert asyncio.get_running_loop().time() - began < 60
        await wait_closed(socket)

    run(scenario())
