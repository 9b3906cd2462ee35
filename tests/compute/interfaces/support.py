"""What the tests of interfaces share."""

from __future__ import annotations

import asyncio
from typing import Any

from kilonova.http.client import Response
from tests.compute.servers.support import guest_on
from tests.support.whole import PATIENCE, Whole

NEWEST = "2.104"


def path(server_id: str, port_id: str = "") -> str:
    return f"/servers/{server_id}/os-interface" + (f"/{port_id}" if port_id else "")


async def ask(c: Whole, server_id: str, *, version: str = NEWEST, as_: str = "member", **keys: Any) -> Response:
    return await c.post(path(server_id), {"interfaceAttachment": keys}, version=version, as_=as_)


async def attach(c: Whole, server_id: str, *, version: str = NEWEST, **keys: Any) -> dict[str, Any]:
    answer = await ask(c, server_id, version=version, **keys)
    assert answer.status == 200, answer.body
    shown: dict[str, Any] = answer.json()["interfaceAttachment"]
    return shown


async def interfaces(c: Whole, server_id: str, version: str = NEWEST) -> list[dict[str, Any]]:
    answer = await c.get(path(server_id), version=version, as_="reader")
    assert answer.status == 200, answer.body
    found: list[dict[str, Any]] = answer.json()["interfaceAttachments"]
    return found


async def idle(c: Whole) -> None:
    """Nothing is under way any more, of no server."""
    async with asyncio.timeout(PATIENCE):
        while await c.db.fetch_value("SELECT COUNT(*) FROM operations WHERE finished_at IS NULL"):
            await asyncio.sleep(0.01)


def in_guest(c: Whole, server_id: str, host: str = "sim-001") -> list[str]:
    """The ports of the guest's interfaces."""
    return [nic.port_id for nic in guest_on(c, host, server_id).nics]


async def addresses(c: Whole, server_id: str) -> list[str]:
    shown = (await c.show(server_id))["addresses"]
    return sorted(entry["addr"] for entries in shown.values() for entry in entries)
