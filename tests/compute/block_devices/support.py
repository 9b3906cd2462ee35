"""Helpers for tests of block devices."""

from __future__ import annotations

import asyncio
from typing import Any

from kilonova.hosts.messages import Guest
from kilonova.identity.client import Auth
from tests.compute.servers.support import guest_on
from tests.support.cloud import DEMO, fault
from tests.support.full_cloud import TIMEOUT_SECONDS, FullCloud

MEMBER = Auth("member", DEMO)
UNKNOWN_ID = "00000000-0000-4000-8000-000000000000"


async def wait_until_deleted(c: FullCloud, volume_id: str) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while await c.services.volume.show(volume_id, MEMBER) is not None:
            await asyncio.sleep(0.01)


async def create_snapshot(c: FullCloud, volume_id: str) -> str:
    made = await c.services.volume.create_snapshot({"volume_id": volume_id, "name": "s", "force": True}, MEMBER)
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while (shown := await c.services.volume.snapshot(made.id, MEMBER)) is None or shown.status != "available":
            await asyncio.sleep(0.01)
    return made.id


async def create_flavor(c: FullCloud, name: str, *, ephemeral: int = 0, **sizes: int) -> str:
    values = {"id": name, "name": name, "vcpus": 1, "ram": 512, "disk": 1, **sizes}
    values["OS-FLV-EXT-DATA:ephemeral"] = ephemeral
    answer = await c.post("/flavors", {"flavor": values}, as_="admin")
    assert answer.status == 200, answer.body
    return name


async def create_refused(c: FullCloud, *, version: str = "2.96", **keys: Any) -> tuple[int, str]:
    """Status and message of a refused creation, which must not create a server."""
    before = await c.db.fetch_value("SELECT COUNT(*) FROM servers")
    server = {"name": "s", "flavorRef": "1", "imageRef": "", "networks": [], **keys}
    answer = await c.post("/servers", {"server": server}, version=version)
    status, _, message = fault(answer)
    assert await c.db.fetch_value("SELECT COUNT(*) FROM servers") == before
    return status, message


def find_guest(c: FullCloud, shown: dict[str, Any]) -> Guest:
    """The server's guest on its host."""
    return guest_on(c, shown["OS-EXT-SRV-ATTR:host"], shown["id"])
