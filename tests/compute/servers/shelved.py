"""Helpers for tests of shelved servers, their snapshots and disks."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.compute.servers.moves import run_move
from tests.support.full_cloud import TIMEOUT_SECONDS, FullCloud

NO_OFFLOAD: dict[str, Any] = {"compute__shelved_offload_seconds": -1}
"""Shelved servers are not offloaded."""


async def boot_shelved(c: FullCloud, status: str = "SHELVED_OFFLOADED", **keys: Any) -> dict[str, Any]:
    """Boot a server and shelve it. It is offloaded too if that is configured."""
    server = await c.boot_active(**keys)
    shown = await run_move(c, server["id"], "shelve", None, as_="project-admin")
    assert shown["status"] == status, shown
    return shown


async def list_snapshots(c: FullCloud, as_: str = "member") -> list[dict[str, Any]]:
    """All images that the caller sees, except the seeded one."""
    answer = await c.get("/images", as_=as_, root="/image/v2")
    assert answer.status == 200, answer.body
    return [image for image in answer.json()["images"] if image["id"] != c.image_id]


async def wait_for_no_snapshots(c: FullCloud) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while await list_snapshots(c, "admin"):
            await asyncio.sleep(0.01)


async def guest_disk(c: FullCloud, server_id: str) -> str:
    """Identifies the content of the disk of the server's only guest."""
    (found,) = [guest.disk for _, guest in await c.list_guests_and_slots() if guest.id == server_id]
    assert found
    return found
