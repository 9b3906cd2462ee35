"""Unreachable volume service: requests that need it are refused, operations wait for it."""

from __future__ import annotations

import asyncio
from typing import Any

from kilonova.http.client import ClientResponse
from tests.compute.volume_attachments.support import NEWEST, guest_volumes, path, request_attach, wait_until_idle
from tests.support import run
from tests.support.cloud import fault
from tests.support.full_cloud import TIMEOUT_SECONDS, FullCloud, full_cloud
from tests.support.volumes import InterceptedVolumeService, attachments, block_device, make_volume, wait_for_volume


class UnreachableVolumeService:
    """Makes the volume service unreachable `during` a request, until an operation has tried to reach it."""

    def __init__(self, c: FullCloud) -> None:
        self.between, self.refused = InterceptedVolumeService(c), asyncio.Event()

    async def during(self, answer: ClientResponse, expected: int) -> None:
        assert answer.status == expected, answer.body
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await self.refused.wait()
        self.refused.clear()
        self.between.hook = None

    def for_changes(self) -> None:
        """Reads still work: the API needs them before it begins operations."""
        self.between.hook = self._no_change

    def for_all(self) -> None:
        self.between.hook = self._nothing

    async def _no_change(self, method: str, path: str, body: Any) -> ClientResponse | None:
        return None if method == "GET" else await self._nothing(method, path, body)

    async def _nothing(self, method: str, path: str, body: Any) -> ClientResponse:
        self.refused.set()
        return ClientResponse(503, {}, b"<html>")


def test_operations_continue_when_the_service_returns(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            away, volume_id = UnreachableVolumeService(c), await make_volume(c)
            away.for_changes()
            root = block_device("image", c.image_id, boot_index=0, volume_size=1, delete_on_termination=True)
            made = await c.boot(imageRef="", block_device_mapping_v2=[root])
            server_id = made["id"]
            await away.during(await c.get(f"/servers/{server_id}"), 200)
            assert (await c.wait_until_settled(server_id))["status"] == "ACTIVE"

            away.for_changes()
            await away.during(await request_attach(c, server_id, volume_id), 202)
            await wait_until_idle(c, server_id)
            assert volume_id in await guest_volumes(c, server_id)

            away.for_changes()
            await away.during(await c.delete(path(server_id, volume_id), version=NEWEST), 202)
            await wait_until_idle(c, server_id)
            assert volume_id not in await guest_volumes(c, server_id)
            await wait_for_volume(c, volume_id, "available")

            away.for_all()
            await away.during(await c.delete(f"/servers/{server_id}"), 204)
            await wait_until_idle(c, server_id)
            async with asyncio.timeout(TIMEOUT_SECONDS):
                while [volume_id] != [row["id"] for row in await c.db.fetch("SELECT id FROM volumes")]:
                    await asyncio.sleep(0.01)
            assert await attachments(c, volume_id) == []

    run(scenario())


def test_requests_are_refused(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            server_id, volume_id = (await c.boot_active())["id"], await make_volume(c)
            UnreachableVolumeService(c).for_all()
            before = await c.db.fetch_value("SELECT COUNT(*) FROM operations")
            root = block_device("volume", volume_id, boot_index=0)
            body = {"name": "s", "flavorRef": "1", "networks": "none", "block_device_mapping_v2": [root]}
            for answer in (
                await request_attach(c, server_id, volume_id),
                await c.post("/servers", {"server": body}, version=NEWEST),
            ):
                assert fault(answer)[::2] == (503, "Another service is not available for the moment; try again.")
            assert await c.db.fetch_value("SELECT COUNT(*) FROM operations") == before
            assert await c.db.fetch_value("SELECT COUNT(*) FROM block_devices") == 0

    run(scenario())
