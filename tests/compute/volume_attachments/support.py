"""Helpers for tests of volume attachments."""

from __future__ import annotations

import asyncio
from typing import Any

from kilonova.http.client import ClientResponse
from tests.support.full_cloud import TIMEOUT_SECONDS, FullCloud
from tests.support.volumes import VOLUME, make_volume, wait_for_volume

NEWEST = "2.104"


async def create_multiattach_volume(c: FullCloud) -> str:
    """A volume that can be attached to several servers."""
    specs = {"multiattach": "<is> True"}
    made = await c.post("/types", {"volume_type": {"name": "shared", "extra_specs": specs}}, as_="admin", root=VOLUME)
    assert made.status == 200, made.body
    return await make_volume(c, volume_type="shared")


async def wait_until_idle(c: FullCloud, server_id: str) -> None:
    """Wait until no operation of the server is unfinished, in any lane."""
    sql = "SELECT COUNT(*) FROM operations WHERE server_id = $1 AND finished_at IS NULL"
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while await c.db.fetch_value(sql, server_id):
            await asyncio.sleep(0.01)


def path(server_id: str, volume_id: str = "") -> str:
    return f"/servers/{server_id}/os-volume_attachments" + (f"/{volume_id}" if volume_id else "")


async def request_attach(
    c: FullCloud, server_id: str, volume_id: str, *, as_: str = "member", version: str = NEWEST, **keys: Any
) -> ClientResponse:
    body = {"volumeAttachment": {"volumeId": volume_id, **keys}}
    return await c.post(path(server_id), body, as_=as_, version=version)


async def attach(
    c: FullCloud, server_id: str, volume_id: str, *, version: str = "2.100", **keys: Any
) -> dict[str, Any]:
    """Attach the volume, wait until it is in use, and return the attachment of the response."""
    answer = await request_attach(c, server_id, volume_id, version=version, **keys)
    assert answer.status == 200, answer.body
    await wait_for_volume(c, volume_id, "in-use")
    await wait_until_idle(c, server_id)
    shown: dict[str, Any] = answer.json()["volumeAttachment"]
    return shown


async def detach(c: FullCloud, server_id: str, volume_id: str) -> None:
    answer = await c.delete(path(server_id, volume_id), version=NEWEST)
    assert (answer.status, answer.body) == (202, b"")
    await wait_until_idle(c, server_id)


async def attachments(c: FullCloud, server_id: str, version: str = NEWEST) -> list[dict[str, Any]]:
    answer = await c.get(path(server_id), version=version)
    assert answer.status == 200, answer.body
    found: list[dict[str, Any]] = answer.json()["volumeAttachments"]
    return found


async def guest_volumes(c: FullCloud, server_id: str) -> list[str]:
    """The volumes that the guest has."""
    return next(
        sorted(guest.volumes)
        for _, guest in await c.list_guests_and_slots()
        if guest.id == server_id and not guest.slot
    )
