"""Image data for drivers, by the routes for hosts and the ticket of the command."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from kilonova.hosts.drivers.base import DriverError
from kilonova.hosts.drivers.sim.snapshots import read_disk
from kilonova.hosts.images import ImageService
from kilonova.hosts.messages import Image, Transfer
from kilonova.hosts.messages.verbs import Snapshot, Spawn
from kilonova.http.client import ClientResponse, InProcess, StreamResponse, Unreachable
from tests.hosts.support import command, guest
from tests.support import run
from tests.support.cloud import DEMO
from tests.support.full_cloud import FullCloud, full_cloud
from tests.support.tickets import transfer_for

IMAGE = {"name": "shelf", "disk_format": "raw", "container_format": "bare", "owner": DEMO, "image_type": "snapshot"}


async def new_image(c: FullCloud) -> str:
    return (await c.services.image.create(IMAGE, "admin")).id


async def read(service: ImageService, transfer: Transfer) -> bytes:
    return b"".join([chunk async for chunk in service.read(transfer)])


async def chunks(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


def test_image_is_written_once_and_read_back(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            service = ImageService(InProcess(c.app, "/image"))
            for data in (b"data", chunks(b"da", b"ta")):
                image_id = await new_image(c)
                transfer = await transfer_for(c, image_id, "PUT")
                await service.write(transfer, data)
                await service.write(transfer, b"ignored: the image has data")
                assert await read(service, await transfer_for(c, image_id)) == b"data"

    run(scenario())


def test_refusals_are_not_transient_and_hide_ticket(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            service = ImageService(InProcess(c.app, "/image"))
            image_id = await new_image(c)
            missing = await transfer_for(c, "nowhere", "PUT")
            unauthorized = Transfer(url=f"/kilonova/v1/images/{image_id}/file", ticket="forged")
            for transfer, status in ((missing, 404), (unauthorized, 403)):
                for attempt in (service.write(transfer, b"data"), service.show(transfer)):
                    with pytest.raises(DriverError, match=f"the image service answered {status}") as refused:
                        await attempt
                    assert not refused.value.passing
                    assert "forged" not in repr((refused.value, transfer))

    run(scenario())


class Broken:
    """An image service that answers with an error, or is unreachable."""

    def __init__(self, status: int | None) -> None:
        self.status = status

    async def request(self, *_: Any, **__: Any) -> ClientResponse:
        if self.status is None:
            raise Unreachable("connection refused")
        return ClientResponse(self.status, {}, b"{}")

    def stream(self, *_: Any, **__: Any) -> AbstractAsyncContextManager[StreamResponse]:
        raise Unreachable("connection refused")


@pytest.mark.parametrize("status", [None, 401, 429, 500, 503])
def test_service_errors_are_transient(status: int | None) -> None:
    async def scenario() -> None:
        service = ImageService(Broken(status))
        transfer = Transfer(url="/kilonova/v1/images/1/file", ticket="t")
        for attempt in (service.write(transfer, b"data"), read(service, transfer)):
            with pytest.raises(DriverError, match="the image service") as failed:
                await attempt
            assert failed.value.passing

    run(scenario())


def test_write_to_image_being_saved_is_refused() -> None:
    async def scenario() -> None:
        with pytest.raises(DriverError, match="answered 409"):
            await ImageService(Saving(409)).write(Transfer(url="/kilonova/v1/images/1/file", ticket="t"), b"data")

    run(scenario())


class Saving(Broken):
    async def request(self, method: str, *_: Any, **__: Any) -> ClientResponse:
        return ClientResponse(200, {}, b'{"status": "saving"}') if method == "GET" else ClientResponse(409, {}, b"{}")


def test_guest_can_be_built_from_snapshot(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2) as c:
            image_id = await new_image(c)
            first = await c.hosts.call("sim-001", command(Spawn(guest=guest("g"))))
            for step in ("snapshot", "snapshot again"):
                await c.hosts.call(
                    "sim-001", command(Snapshot(guest_id="g", data=await transfer_for(c, image_id, "PUT")), step=step)
                )
            shown = await c.services.image.show(image_id, "admin")
            assert shown is not None
            assert (shown.status, shown.properties["image_type"]) == ("active", "snapshot")
            image = Image(id=image_id, properties={"image_type": shown.properties["image_type"]})
            data = await transfer_for(c, image_id, host="sim-002")
            spawn = Spawn(guest=guest("h", image=image), data=data)
            second = await c.hosts.call("sim-002", command(spawn, host="sim-002"))
            assert second.disk == first.disk

    run(scenario())


def test_reason_of_a_refusal_is_told(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            image_id = await new_image(c)
            await c.services.image.upload(image_id, b"data", "admin")
            path = f"/v2/images/{image_id}/actions/deactivate"
            assert (await c.request("POST", path, as_="admin", root="/image")).status == 204
            c.services.config.image.url = "http://glance"
            service = ImageService(InProcess(c.app, "/image"))
            with pytest.raises(DriverError, match=f"answered 403: Image {image_id} is deactivated") as refused:
                await read(service, await transfer_for(c, image_id))
            assert not refused.value.passing

    run(scenario())


def test_unknown_hash_algorithm_is_a_refusal() -> None:
    image = Image(id="i", hash="unknown:1", disk_format="raw", container_format="bare")
    with pytest.raises(DriverError, match="cannot be checked: the hash algorithm unknown is not supported"):
        run(read_disk(chunks(b"{}"), image))
