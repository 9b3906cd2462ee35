"""What the tests of block devices share: sources to make disks of, and what became of them."""

from __future__ import annotations

import asyncio
from typing import Any

from kilonova.hosts.messages import Guest
from kilonova.identity.client import Auth
from tests.compute.servers.support import guest_on
from tests.support.cloud import DEMO, fault
from tests.support.whole import PATIENCE, Whole

MEMBER = Auth("member", DEMO)
NOBODY = "00000000-0000-4000-8000-000000000000"


async def vanished(c: Whole, volume_id: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while await c.services.volume.show(volume_id, MEMBER) is not None:
            await asyncio.sleep(0.01)


async def make_snapshot(c: Whole, volume_id: str) -> str:
    made = await c.services.volume.create_snapshot({"volume_id": volume_id, "name": "s", "force": True}, MEMBER)
    async with asyncio.timeout(PATIENCE):
        while (shown := await c.services.volume.snapshot(made["id"], MEMBER)) is None or shown["status"] != "available":
            await asyncio.sleep(0.01)
    return str(made["id"])


async def make_flavor(c: Whole, name: str, *, ephemeral: int = 0, **sizes: int) -> str:
    values = {"id": name, "name": name, "vcpus": 1, "ram": 512, "disk": 1, **sizes}
    values["OS-FLV-EXT-DATA:ephemeral"] = ephemeral
    answer = await c.post("/flavors", {"flavor": values}, as_="admin")
    assert answer.status == 200, answer.body
    return name


async def refused(c: Whole, *, version: str = "2.96", **keys: Any) -> tuple[int, str]:
    """What a create is answered, which has made nothing."""
    before = await c.db.fetch_value("SELECT COUNT(*) FROM servers")
    server = {"name": "s", "flavorRef": "1", "imageRef": "", "networks": [], **keys}
    answer = await c.post("/servers", {"server": server}, version=version)
    status, _, message = fault(answer)
    assert await c.db.fetch_value("SELECT COUNT(*) FROM servers") == before
    return status, message


def guest_of(c: Whole, shown: dict[str, Any]) -> Guest:
    """What the server's host was asked to build."""
    return guest_on(c, shown["OS-EXT-SRV-ATTR:host"], shown["id"])
