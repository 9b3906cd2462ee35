"""Passwords published by guests are shown until they are cleared."""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec import structs

from kilonova.compute import power_state_sync
from kilonova.hosts.messages import Command, Report
from kilonova.hosts.messages.verbs import ListGuests, SetMetadata
from kilonova.hosts.transport import HostUnreachable, Transport, list_guests
from tests.compute.interfaces.support import wait_until_idle
from tests.compute.servers.support import act
from tests.support import run
from tests.support.full_cloud import TIMEOUT_SECONDS, FullCloud, full_cloud
from tests.support.route_coverage import proves

HOST = "sim-001"
SEALED = "c2VhbGVk"
PASSWORD = "/servers/{server_id}/os-server-password"


class PasswordHosts:
    """Hosts whose guests have published a password."""

    def __init__(self, hosts: Transport) -> None:
        self._hosts = hosts
        self.silent = False
        self.password = SEALED

    async def call(self, host: str, command: Command, *, timeout: float | None = None) -> Any:
        if isinstance(command.verb, SetMetadata):
            if self.silent:
                raise HostUnreachable(host, "is silent")
            if command.verb.forgetting:
                self.password = ""
        answer = await self._hosts.call(host, command, timeout=timeout)
        if isinstance(command.verb, ListGuests):
            return [structs.replace(guest, sealed_password=self.password) for guest in answer]
        return answer


async def with_password(c: FullCloud) -> PasswordHosts:
    made = c.services.hosts = PasswordHosts(c.services.hosts)
    return made


async def report(c: FullCloud) -> bool:
    """Process a report; returns whether everything agreed already."""
    return await power_state_sync.sync(c.services, Report(host=HOST, guests=await list_guests(c.services.hosts, HOST)))


async def shown(c: FullCloud, server_id: str) -> str:
    answer = await c.get(PASSWORD.format(server_id=server_id), as_="reader")
    password: str = answer.json()["password"]
    return password


@proves(f"GET {PASSWORD}", f"DELETE {PASSWORD}")
def test_password_is_shown_until_it_is_cleared(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            server_id = (await c.boot_active())["id"]
            hosts = await with_password(c)
            assert await shown(c, server_id) == ""
            assert not await report(c)
            assert await shown(c, server_id) == SEALED
            assert (await c.show(server_id))["status"] == "ACTIVE"
            assert await report(c)

            assert (await c.delete(PASSWORD.format(server_id=server_id))).status == 204
            assert await shown(c, server_id) == ""
            await wait_until_idle(c)
            assert hosts.password == ""
            assert await report(c)
            assert await shown(c, server_id) == ""

    run(scenario())


def test_metadata_change_keeps_the_password(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            server_id = (await c.boot_active())["id"]
            hosts = await with_password(c)
            await c.put(f"/servers/{server_id}", {"server": {"name": "other"}})
            await wait_until_idle(c)
            assert hosts.password == SEALED
            await report(c)
            assert await shown(c, server_id) == SEALED

    run(scenario())


def test_report_before_the_guest_is_cleared_is_ignored(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            server_id = (await c.boot_active())["id"]
            hosts = await with_password(c)
            await report(c)
            hosts.silent = True
            assert (await c.delete(PASSWORD.format(server_id=server_id))).status == 204
            async with asyncio.timeout(TIMEOUT_SECONDS):
                while not await c.db.fetch_value("SELECT 1 FROM operations WHERE kind = 'deferred_update_metadata'"):
                    await asyncio.sleep(0.02)
            assert not await report(c)
            assert await shown(c, server_id) == ""

    run(scenario())


def test_rebuild_clears_the_password(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            server_id = (await c.boot_active())["id"]
            hosts = await with_password(c)
            await report(c)
            hosts.password = ""
            assert (await act(c, server_id, "rebuild", {"imageRef": c.image_id})).status == 202
            await wait_until_idle(c)
            assert await shown(c, server_id) == ""

    run(scenario())
