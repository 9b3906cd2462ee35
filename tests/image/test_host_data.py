"""Routes for hosts: a ticket is good for its image, method, host and operation only, and needs no token."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import orjson
import pytest

from kilonova import clock
from kilonova.compute.operations.steps.server import IMAGE_TICKET_SECONDS
from kilonova.hosts.drivers.base import DriverError
from kilonova.hosts.images import ImageService
from kilonova.hosts.messages import Transfer
from kilonova.http.client import ClientResponse, InProcess, Remote
from kilonova.image.client import ImageClient
from kilonova.image.tickets import ImageTicket
from kilonova.tickets import HEADER
from tests.support import run
from tests.support.cloud import DEMO
from tests.support.full_cloud import FullCloud, full_cloud
from tests.support.tickets import operation_on_host, set_columns

HOST = "sim-001"
RAW = {"name": "private", "disk_format": "raw", "container_format": "bare", "owner": DEMO, "visibility": "private"}


async def new_image(c: FullCloud, data: bytes | None = None) -> str:
    image_id = (await c.services.image.create(RAW, "kilonova")).id
    if data is not None:
        await c.services.image.upload(image_id, data, "kilonova")
    return image_id


def ticket(c: FullCloud, image_id: str, operation_id: str, *, method: str = "GET", host: str = HOST) -> str:
    return c.services.image_tickets.issue(ImageTicket(image_id, method, host, operation_id), 600)  # type: ignore[arg-type]


async def call(
    c: FullCloud, method: str, image_id: str, text: str | None, *, suffix: str = "/file", header: str = HEADER
) -> ClientResponse:
    headers = {} if text is None else {header: text}
    return await c.request(
        method,
        f"/kilonova/v1/images/{image_id}{suffix}",
        as_=None,
        root="/image",
        headers={**headers, "Content-Type": "application/octet-stream"},
        content=b"forged" if method == "PUT" else None,
    )


def test_ticket_reads_its_image(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            image_id, op = await new_image(c, b"data"), await operation_on_host(c)
            text = ticket(c, image_id, op.id)
            assert (await call(c, "GET", image_id, text)).body == b"data"
            shown = (await call(c, "GET", image_id, text, suffix="")).json()
            assert (shown["id"], shown["status"], shown["size"], shown["disk_format"]) == (image_id, "active", 4, "raw")
            assert shown["os_hash_algo"] == "sha512"
            assert len(shown["os_hash_value"]) == 128
            assert "owner" not in shown
            # An older agent takes its ticket for a token.
            assert (await call(c, "GET", image_id, text, header="X-Auth-Token")).body == b"data"

    run(scenario())


def test_upload_ticket_writes_its_image_once(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            image_id, op = await new_image(c), await operation_on_host(c)
            text = ticket(c, image_id, op.id, method="PUT")
            assert (await call(c, "GET", image_id, text, suffix="")).json()["status"] == "queued"
            assert (await call(c, "PUT", image_id, text)).status == 204
            assert (await call(c, "PUT", image_id, text)).status == 409
            # It does not read what it has written.
            assert (await call(c, "GET", image_id, text)).status == 403

    run(scenario())


def test_ticket_is_refused_for_everything_else(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2) as c:
            image_id, other_id, op = (
                await new_image(c, b"data"),
                await new_image(c, b"other"),
                await operation_on_host(c),
            )
            queued_id = await new_image(c)
            text = ticket(c, image_id, op.id)

            async def statuses(text: str | None, image_id: str = image_id) -> tuple[int, int]:
                return (await call(c, "GET", image_id, text)).status, (
                    await call(c, "GET", image_id, text, suffix="")
                ).status

            assert await statuses(text) == (200, 200)
            assert await statuses(None) == (401, 401)
            for wrong in ("x", text[:-1], text + "A", "kilonova", "admin"):
                assert await statuses(wrong) == (403, 403)
            # Another image, another method, an upload to an image without data.
            assert await statuses(text, other_id) == (403, 403)
            assert (await call(c, "PUT", image_id, text)).status == 403
            assert (await call(c, "PUT", queued_id, ticket(c, queued_id, op.id))).status == 403
            assert (await statuses(ticket(c, image_id, op.id, method="PUT"))) == (403, 200)
            # A host that the operation does not work on, and an operation that does not exist.
            assert await statuses(ticket(c, image_id, op.id, host="sim-002")) == (403, 403)
            assert await statuses(ticket(c, image_id, "2f1a9c1e-0000-4000-8000-000000000000")) == (403, 403)
            # The operation has gone on to another host.
            await set_columns(c, op, host="sim-002")
            assert await statuses(text) == (403, 403)
            await set_columns(c, op, host=HOST)
            assert await statuses(text) == (200, 200)
            now = clock.now()
            with monkeypatch.context() as later:
                later.setattr(clock, "now", lambda: now + IMAGE_TICKET_SECONDS + 1)
                assert await statuses(text) == (401, 401)
            await set_columns(c, op, finished_at=clock.now())
            assert await statuses(text) == (403, 403)
            assert (await c.services.image.show(queued_id, "kilonova")).status == "queued"  # type: ignore[union-attr]

    run(scenario())


def test_ticket_is_no_token(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            image_id, op = await new_image(c, b"data"), await operation_on_host(c)
            for method in ("GET", "PUT"):
                text = ticket(c, image_id, op.id, method=method)
                for header in ("X-Auth-Token", HEADER):
                    for path in ("/image/v2/images", f"/image/v2/images/{image_id}/file", "/compute/v2.1/servers"):
                        answer = await c.request("GET", path, as_=None, root="", headers={header: text})
                        assert answer.status == 401, (header, path)

    run(scenario())


def test_transfer_under_way_outlives_its_ticket_and_operation(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            image_id, op = await new_image(c, b"ab" * (3 << 20)), await operation_on_host(c)
            text = ticket(c, image_id, op.id)
            path = f"/image/kilonova/v1/images/{image_id}/file"
            async with c.caller.stream("GET", path, headers={HEADER: text}) as answer:
                received = len(await anext(answer.chunks))
                now = clock.now()
                with monkeypatch.context() as later:
                    later.setattr(clock, "now", lambda: now + 3600)
                    async for chunk in answer.chunks:
                        received += len(chunk)
            assert received == 6 << 20

    run(scenario())


def test_interrupted_upload_leaves_the_image_queued(sqlite_url: str) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"begin"
        raise ConnectionError("the host died")

    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            image_id, op = await new_image(c), await operation_on_host(c)
            text = ticket(c, image_id, op.id, method="PUT")
            path = f"/image/kilonova/v1/images/{image_id}/file"
            with pytest.raises(ConnectionError):
                await c.caller.request("PUT", path, headers={HEADER: text}, content=broken())
            assert (await call(c, "GET", image_id, text, suffix="")).json()["status"] == "queued"
            assert (await call(c, "PUT", image_id, text)).status == 204

    run(scenario())


def test_missing_image_is_404(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            op = await operation_on_host(c)
            assert (await call(c, "GET", "gone", ticket(c, "gone", op.id))).status == 404

    run(scenario())


def test_deactivated_image_is_downloaded_from_the_built_in_service_only(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            image_id, op = await new_image(c, b"data"), await operation_on_host(c)
            path = f"/v2/images/{image_id}/actions/deactivate"
            assert (await c.request("POST", path, as_="admin", root="/image")).status == 204
            answer = await call(c, "GET", image_id, ticket(c, image_id, op.id))
            assert (answer.status, answer.body) == (200, b"data")
            c.services.config.image.url = "http://glance"
            answer = await call(c, "GET", image_id, ticket(c, image_id, op.id))
            assert (answer.status, "is deactivated" in answer.json()["message"]) == (403, True)

    run(scenario())


@pytest.mark.parametrize("breaks_off", [True, False])
def test_image_service_that_breaks_off_breaks_off_the_download(sqlite_url: str, breaks_off: bool) -> None:
    """A host never takes a part of an image for the whole, also if it does not know the size."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        path = head.split()[1]
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n")
        if path.endswith("/file"):
            writer.write(b"Transfer-Encoding: chunked\r\n\r\n4\r\ndata\r\n" + (b"" if breaks_off else b"0\r\n\r\n"))
        else:
            shown = orjson.dumps({"id": path.rpartition("/")[2], "status": "active"})
            writer.write(b"Content-Length: %d\r\n\r\n%s" % (len(shown), shown))
        await writer.drain()
        writer.close()

    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            glance = await asyncio.start_server(answer, "127.0.0.1", 0)
            remote = Remote(f"http://127.0.0.1:{glance.sockets[0].getsockname()[1]}")
            c.services.image = ImageClient(remote, is_glance=True)
            op = await operation_on_host(c)
            url = "/kilonova/v1/images/i/file"
            received = b""
            service = ImageService(InProcess(c.app, "/image"))
            try:
                async for chunk in service.read(Transfer(url=url, ticket=ticket(c, "i", op.id))):
                    received += chunk
                error = None
            except DriverError as raised:
                error = raised
            assert received == b"data"
            assert (error is not None and error.passing) == breaks_off
            await remote.close()
            glance.close()

    run(scenario())
