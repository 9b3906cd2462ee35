"""Helpers for tests of interfaces."""

from __future__ import annotations

import asyncio
from typing import Any

from kilonova.http.client import ClientResponse
from tests.compute.servers.support import guest_on
from tests.support.full_cloud import TIMEOUT_SECONDS, FullCloud

NEWEST = "2.104"


def path(server_id: str, port_id: str = "") -> str:
    return f"/servers/{server_id}/os-interface" + (f"/{port_id}" if port_id else "")


async def request_attach(
    c: FullCloud, server_id: str, *, version: str = NEWEST, as_: str = "member", **keys: Any
) -> ClientResponse:
    return await c.post(path(server_id), {"interfaceAttachment": keys}, version=version, as_=as_)


async def attach(c: FullCloud, server_id: str, *, version: str = NEWEST, **keys: Any) -> dict[str, Any]:
    answer = await request_attach(c, server_id, version=version, **keys)
    assert answer.status == 200, answer.body
    shown: dict[str, Any] = answer.json()["interfaceAttachment"]
    return shown


async def interfaces(c: FullCloud, server_id: str, version: str = NEWEST) -> list[dict[str, Any]]:
    answer = await c.get(path(server_id), version=version, as_="reader")
    assert answer.status == 200, answer.body
    found: list[dict[str, Any]] = answer.json()["interfaceAttachments"]
    return found


async def wait_until_idle(c: FullCloud) -> None:
    """Wait until no operation of any server is unfinished."""
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while await c.db.fetch_value("SELECT COUNT(*) FROM operations WHERE finished_at IS NULL"):
            await asyncio.sleep(0.01)


def guest_ports(c: FullCloud, server_id: str, host: str = "sim-001") -> list[str]:
    """The ports of the guest's interfaces."""
    return [nic.port_id for nic in guest_on(c, host, server_id).nics]


async def addresses(c: FullCloud, server_id: str) -> list[str]:
    shown = (await c.show(server_id))["addresses"]
    return sorted(entry["addr"] for entries in shown.values() for entry in entries)
