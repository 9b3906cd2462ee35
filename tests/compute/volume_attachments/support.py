"""What the tests of servers' volumes share."""

from __future__ import annotations

import asyncio
from typing import Any

from kilonova.http.client import Response
from tests.support.volumes import VOLUME, make_volume, volume_until
from tests.support.whole import PATIENCE, Whole

NEWEST = "2.104"


async def make_shared_volume(c: Whole) -> str:
    """One that several servers may have."""
    specs = {"multiattach": "<is> True"}
    made = await c.post("/types", {"volume_type": {"name": "shared", "extra_specs": specs}}, as_="admin", root=VOLUME)
    assert made.status == 200, made.body
    return await make_volume(c, volume_type="shared")


async def idle(c: Whole, server_id: str) -> None:
    """Nothing is done to the server any more, not even beside others."""
    sql = "SELECT COUNT(*) FROM operations WHERE server_id = $1 AND finished_at IS NULL"
    async with asyncio.timeout(PATIENCE):
        while await c.db.fetch_value(sql, server_id):
            await asyncio.sleep(0.01)


def path(server_id: str, volume_id: str = "") -> str:
    return f"/servers/{server_id}/os-volume_attachments" + (f"/{volume_id}" if volume_id else "")


async def ask_attach(
    c: Whole, server_id: str, volume_id: str, *, as_: str = "member", version: str = NEWEST, **keys: Any
) -> Response:
    body = {"volumeAttachment": {"volumeId": volume_id, **keys}}
    return await c.post(path(server_id), body, as_=as_, version=version)


async def attach(c: Whole, server_id: str, volume_id: str, *, version: str = "2.100", **keys: Any) -> dict[str, Any]:
    """What the answer shows, once the volume is in use."""
    answer = await ask_attach(c, server_id, volume_id, version=version, **keys)
    assert answer.status == 200, answer.body
    await volume_until(c, volume_id, "in-use")
    await idle(c, server_id)
    shown: dict[str, Any] = answer.json()["volumeAttachment"]
    return shown


async def detach(c: Whole, server_id: str, volume_id: str) -> None:
    answer = await c.delete(path(server_id, volume_id), version=NEWEST)
    assert (answer.status, answer.body) == (202, b"")
    await idle(c, server_id)


async def attachments(c: Whole, server_id: str, version: str = NEWEST) -> list[dict[str, Any]]:
    answer = await c.get(path(server_id), version=version)
    assert answer.status == 200, answer.body
    found: list[dict[str, Any]] = answer.json()["volumeAttachments"]
    return found


async def in_guest(c: Whole, server_id: str) -> list[str]:
    """The volumes that the guest has."""
    return next(sorted(guest.volumes) for _, guest in await c.everything() if guest.id == server_id and not guest.slot)
