"""Servers that are shelved, for tests: how they come to be so, and their snapshots and disks."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.compute.servers.moves import moved
from tests.support.whole import PATIENCE, Whole

KEPT: dict[str, Any] = {"compute__shelved_offload_seconds": -1}
"""Servers stay on their hosts when they are shelved."""


async def shelved(c: Whole, status: str = "SHELVED_OFFLOADED", **keys: Any) -> dict[str, Any]:
    """A new server, shelved; and offloaded, where that is configured."""
    server = await c.active(**keys)
    shown = await moved(c, server["id"], "shelve", None, as_="project-admin")
    assert shown["status"] == status, shown
    return shown


async def snapshots(c: Whole, as_: str = "member") -> list[dict[str, Any]]:
    """All images that the caller sees but for those to boot from."""
    answer = await c.get("/images", as_=as_, root="/image/v2")
    assert answer.status == 200, answer.body
    return [image for image in answer.json()["images"] if image["id"] != c.image_id]


async def dropped(c: Whole) -> None:
    """Wait until there are no snapshots."""
    async with asyncio.timeout(PATIENCE):
        while await snapshots(c, "admin"):
            await asyncio.sleep(0.01)


async def disk(c: Whole, server_id: str) -> str:
    """What tells the disk of the server's only guest from others."""
    (found,) = [guest.disk for _, guest in await c.everything() if guest.id == server_id]
    assert found
    return found
