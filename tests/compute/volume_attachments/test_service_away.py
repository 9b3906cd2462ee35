"""A volume service that is away for a while: refused at once where an answer depends on it, and else waited for."""

from __future__ import annotations

import asyncio
from typing import Any

from kilonova.http.client import Response
from tests.compute.volume_attachments.support import NEWEST, ask_attach, idle, in_guest, path
from tests.support import run
from tests.support.cloud import fault
from tests.support.volumes import Between, attachments, device, make_volume, volume_until
from tests.support.whole import PATIENCE, Whole, whole


class Away:
    """`during` holds the volume service back until an operation has asked it in vain."""

    def __init__(self, c: Whole) -> None:
        self.between, self.refused = Between(c), asyncio.Event()

    async def during(self, answer: Response, expected: int) -> None:
        assert answer.status == expected, answer.body
        async with asyncio.timeout(PATIENCE):
            await self.refused.wait()
        self.refused.clear()
        self.between.hook = None

    def for_changes(self) -> None:
        """It can still be looked at, as the API does before it begins anything."""
        self.between.hook = self._no_change

    def for_all(self) -> None:
        self.between.hook = self._nothing

    async def _no_change(self, method: str, path: str, body: Any) -> Response | None:
        return None if method == "GET" else await self._nothing(method, path, body)

    async def _nothing(self, method: str, path: str, body: Any) -> Response:
        self.refused.set()
        return Response(503, {}, b"<html>")


def test_what_was_begun_is_done_on_its_return(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with whole(sqlite_url, hosts=1) as c:
            away, volume_id = Away(c), await make_volume(c)
            away.for_changes()
            root = device("image", c.image_id, boot_index=0, volume_size=1, delete_on_termination=True)
            made = await c.boot(imageRef="", block_device_mapping_v2=[root])
            server_id = made["id"]
            await away.during(await c.get(f"/servers/{server_id}"), 200)
            assert (await c.settled(server_id))["status"] == "ACTIVE"

            away.for_changes()
            await away.during(await ask_attach(c, server_id, volume_id), 202)
            await idle(c, server_id)
            assert volume_id in await in_guest(c, server_id)

            away.for_changes()
            await away.during(await c.delete(path(server_id, volume_id), version=NEWEST), 202)
            await idle(c, server_id)
            assert volume_id not in await in_guest(c, server_id)
            await volume_until(c, volume_id, "available")

            away.for_all()
            await away.during(await c.delete(f"/servers/{server_id}"), 204)
            await idle(c, server_id)
            async with asyncio.timeout(PATIENCE):
                while [volume_id] != [row["id"] for row in await c.db.fetch("SELECT id FROM volumes")]:
                    await asyncio.sleep(0.01)
            assert await attachments(c, volume_id) == []

    run(scenario())


def test_what_depends_on_it_is_refused(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with whole(sqlite_url, hosts=1) as c:
            server_id, volume_id = (await c.active())["id"], await make_volume(c)
            Away(c).for_all()
            before = await c.db.fetch_value("SELECT COUNT(*) FROM operations")
            root = device("volume", volume_id, boot_index=0)
            body = {"name": "s", "flavorRef": "1", "networks": "none", "block_device_mapping_v2": [root]}
            for answer in (
                await ask_attach(c, server_id, volume_id),
                await c.post("/servers", {"server": body}, version=NEWEST),
            ):
                assert fault(answer)[::2] == (503, "Another service is not available for the moment; try again.")
            assert await c.db.fetch_value("SELECT COUNT(*) FROM operations") == before
            assert await c.db.fetch_value("SELECT COUNT(*) FROM block_devices") == 0

    run(scenario())
