"""The metadata service: posted passwords and limits."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from kilonova.hosts.drivers.libvirt.networks import namespaces
from kilonova.hosts.drivers.libvirt.networks.metadata_service import MetadataService
from tests.support import run

PATH = "/openstack/latest/password"


async def post(service: MetadataService, path: str, body: bytes, *headers: str) -> int:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await service._serve("network", reader, writer)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
        head = "\r\n".join((f"POST {path} HTTP/1.1", *(headers or (f"Content-Length: {len(body)}",)), "", ""))
        writer.write(head.encode() + body)
        async with asyncio.timeout(60):
            status = int((await reader.readline()).split()[1])
            await reader.read()
        writer.close()
    return status


def test_password_is_stored_once() -> None:
    kept: list[str] = []

    def take(network_id: str, source: str, password: str) -> bool | None:
        assert (network_id, source) == ("network", "127.0.0.1")
        kept.append(password)
        return len(kept) == 1

    async def scenario() -> None:
        service = MetadataService(lambda *_: b"", take)
        assert await post(service, PATH, b"c2VhbGVk\n") == 200
        assert await post(service, "/openstack/2013-04-04/password", b"other") == 409
        assert kept == ["c2VhbGVk", "other"]

    run(scenario())


def test_other_posts_are_refused() -> None:
    async def scenario() -> None:
        service = MetadataService(lambda *_: b"", lambda *_: True)
        assert await post(service, PATH, b"x" * 256) == 413
        assert await post(service, PATH, b"x" * 20000) == 413
        assert await post(service, PATH, b"") == 400
        assert await post(service, PATH, b"no\x00letters") == 400
        assert await post(service, "/openstack/latest/meta_data.json", b"x") == 405
        assert await post(service, PATH, b"1\r\nx\r\n0\r\n\r\n", "Transfer-Encoding: chunked") == 405
        assert await post(service, PATH, b"x", "Content-Length: 1", "Content-Length: 1") == 405
        assert await post(MetadataService(lambda *_: b""), PATH, b"x") == 404

    run(scenario())


def test_connections_of_one_guest_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        bound = socket.create_server(("127.0.0.1", 0))

        async def inside(*_: Any) -> socket.socket:
            return bound

        monkeypatch.setattr(namespaces, "run_inside", inside)
        service = MetadataService(lambda *_: b"told")
        await service.ensure("network", "space")
        place = bound.getsockname()
        try:
            greedy = [await asyncio.open_connection(*place) for _ in range(20)]
            async with asyncio.timeout(60):
                assert [await reader.read() for reader, _ in greedy[16:]] == [b""] * 4
                reader, writer = await asyncio.open_connection(*place, local_addr=("127.0.0.2", 0))
                writer.write(b"GET / HTTP/1.0\r\n\r\n")
                assert (await reader.read()).endswith(b"told")
                greedy[0][1].write(b"GET / HTTP/1.0\r\n\r\n")
                assert (await greedy[0][0].read()).endswith(b"told"), "those that it may have go on"
            for _, opened in (*greedy, (reader, writer)):
                opened.close()
        finally:
            await service.close()

    run(scenario())
