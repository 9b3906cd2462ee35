"""The examples of proxies in front of the APIs, with the real programs."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from websockets.asyncio.client import connect

from tests.compute.consoles.support import GREETING, fake_display, fake_displays, served, websocket_url
from tests.support import run
from tests.support.certificates import Authority
from tests.support.full_cloud import TIMEOUT_SECONDS
from tests.support.ports import free_port

EXAMPLES = Path(__file__).parents[2] / "examples/proxies"
ADDRESS = "127.0.0.1"
# Another address than that of the proxy.
CLIENT_ADDRESS = "127.0.0.2"
SPOOFED = {"X-Forwarded-For": "203.0.113.9", "X-Forwarded-Host": "evil.example", "X-Forwarded-Proto": "http"}


def find_program(name: str) -> str:
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin")
    if found is None:
        if os.environ.get("KILONOVA_REQUIRE_ALL") == "1":
            pytest.fail(f"{name} is not installed, and KILONOVA_REQUIRE_ALL=1")
        pytest.skip(f"{name} is not installed")
    return found


def replaced(text: str, **replacements: str) -> str:
    for old, new in replacements.items():
        assert old in text
        text = text.replace(old, new)
    return text


def nginx(directory: Path, files: Path, port: int, backend: str) -> list[str]:
    """Configure nginx; returns its command."""
    site = replaced(
        (EXAMPLES / "nginx.conf").read_text(),
        **{
            "127.0.0.1:8774": backend,
            "listen 443 ssl": f"listen {ADDRESS}:{port} ssl",
            "listen 80": f"listen {ADDRESS}:{free_port()}",
            "/etc/ssl/kilonova/cert.pem": str(files / "server-cert.pem"),
            "/etc/ssl/kilonova/key.pem": str(files / "server-key.pem"),
        },
    )
    temporary = "".join(
        f"{kind}_temp_path {directory}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    file = directory / "nginx.conf"
    file.write_text(
        f"daemon off; master_process off; pid {directory}/pid; error_log stderr;\n"
        f"events {{}}\nhttp {{\naccess_log off;\n{temporary}{site}}}\n"
    )
    return [find_program("nginx"), "-p", str(directory), "-e", "stderr", "-c", str(file)]


def haproxy(directory: Path, files: Path, port: int, backend: str) -> list[str]:
    """Configure HAProxy; returns its command."""
    both = directory / "kilonova.pem"
    both.write_bytes((files / "server-cert.pem").read_bytes() + (files / "server-key.pem").read_bytes())
    text = replaced(
        (EXAMPLES / "haproxy.cfg").read_text(),
        **{"127.0.0.1:8774": backend, "bind :443": f"bind {ADDRESS}:{port}", "/etc/haproxy/kilonova.pem": str(both)},
    )
    file = directory / "haproxy.cfg"
    file.write_text(text)
    return [find_program("haproxy"), "-db", "-f", str(file)]


@asynccontextmanager
async def running(command: list[str]) -> AsyncIterator[None]:
    process = await asyncio.create_subprocess_exec(*command)
    try:
        yield
    finally:
        process.kill()
        await process.wait()


@asynccontextmanager
async def proxied(
    make: Callable[[Path, Path, int, str], list[str]], directory: Path, backend: str
) -> AsyncIterator[tuple[httpx.AsyncClient, ssl.SSLContext]]:
    """Run the proxy, and yield a client for it once it answers."""
    files = Authority().issue(directory / "pki", ADDRESS)
    context = ssl.create_default_context(cafile=files / "ca-cert.pem")
    port = free_port()
    transport = httpx.AsyncHTTPTransport(verify=context, local_address=CLIENT_ADDRESS)
    base = f"https://{ADDRESS}:{port}"
    async with (
        running(make(directory, files, port, urlsplit(backend).netloc)),
        httpx.AsyncClient(base_url=base, transport=transport, timeout=TIMEOUT_SECONDS) as client,
        asyncio.timeout(TIMEOUT_SECONDS),
    ):
        while True:
            try:
                if (await client.get("/compute/v2.1/")).status_code == 200:
                    break
            except httpx.TransportError:
                pass
            await asyncio.sleep(0.05)
        yield client, context


@pytest.mark.parametrize("make", [nginx, haproxy])
def test_apis_and_consoles_behind_proxy(
    sqlite_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, make: Callable[..., list[str]]
) -> None:
    async def scenario() -> None:
        async with (
            served(sqlite_url, trusted_proxies=[ADDRESS]) as (c, backend),
            fake_display() as display,
            proxied(make, tmp_path, backend) as (client, context),
        ):
            own = str(client.base_url).rstrip("/")
            with caplog.at_level(logging.INFO, "kilonova.http.app"):
                shown = (await client.get("/compute/v2.1/", headers=SPOOFED)).json()["version"]
                assert shown["links"][0]["href"] == f"{own}/compute/v2.1/"
                direct = httpx.AsyncHTTPTransport(local_address=CLIENT_ADDRESS)
                async with httpx.AsyncClient(base_url=backend, transport=direct) as stranger:
                    shown = (await stranger.get("/compute/v2.1/", headers=SPOOFED)).json()["version"]
                    assert shown["links"][0]["href"] == f"{backend}/compute/v2.1/"
            assert [record.address for record in caplog.records if record.address] == [CLIENT_ADDRESS] * 2  # type: ignore[attr-defined]

            token = {"X-Auth-Token": "admin", "X-OpenStack-Nova-API-Version": "2.104"}
            image = {"name": "large", "disk_format": "raw", "container_format": "bare"}
            created = await client.post("/image/v2/images", json=image, headers=token)
            assert created.headers["location"].startswith(f"{own}/image/v2/images/")
            data, kind = b"x" * (3 << 20), {"Content-Type": "application/octet-stream"}
            file = f"/image/v2/images/{created.json()['id']}/file"
            assert (await client.put(file, content=data, headers=token | kind)).status_code == 204
            assert (await client.get(file, headers=token)).content == data

            server_id = (await c.boot_active())["id"]
            for type, protocol in (("novnc", "vnc"), ("serial", "serial")):
                with fake_displays(**{protocol: display.port}):
                    body = {"remote_console": {"protocol": protocol, "type": type}}
                    path = f"/compute/v2.1/servers/{server_id}/remote-consoles"
                    url = (await client.post(path, json=body, headers=token)).json()["remote_console"]["url"]
                    assert url.startswith(own if type == "novnc" else own.replace("https", "wss"))
                    websocket = websocket_url(url) if type == "novnc" else url
                    async with connect(websocket, ssl=context, origin=own, proxy=None, open_timeout=60) as socket:  # type: ignore[arg-type]
                        assert await socket.recv() == GREETING
                        await socket.send(b"\x00\xff" * 3)
                        assert await socket.recv() == b"\x00\xff" * 3

    run(scenario())
