"""A password that a guest gives away is shown to its owner, until he has it forgotten."""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec import structs

from kilonova.compute import power_states
from kilonova.hosts.messages import Command, ListGuests, Report, SetMetadata
from kilonova.hosts.transport import HostUnreachable, Transport, list_guests
from tests.compute.interfaces.support import idle
from tests.compute.servers.support import act
from tests.support import run
from tests.support.proves import proves
from tests.support.whole import PATIENCE, Whole, whole

HOST = "sim-001"
SEALED = "c2VhbGVk"
PASSWORD = "/servers/{server_id}/os-server-password"


class Sealing:
    """Hosts whose guests have a password to give away."""

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


async def sealing(c: Whole) -> Sealing:
    made = c.services.hosts = Sealing(c.services.hosts)
    return made


async def report(c: Whole) -> bool:
    """Whether nothing of it was new."""
    return await power_states.observe(c.services, Report(host=HOST, guests=await list_guests(c.services.hosts, HOST)))


async def shown(c: Whole, server_id: str) -> str:
    answer = await c.get(PASSWORD.format(server_id=server_id), as_="reader")
    password: str = answer.json()["password"]
    return password


@proves(f"GET {PASSWORD}", f"DELETE {PASSWORD}")
def test_a_password_is_shown_until_it_is_forgotten(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=1) as c:
            server_id = (await c.active())["id"]
            hosts = await sealing(c)
            assert await shown(c, server_id) == ""
            assert not await report(c)
            assert await shown(c, server_id) == SEALED
            assert (await c.show(server_id))["status"] == "ACTIVE"
            assert await report(c)

            assert (await c.delete(PASSWORD.format(server_id=server_id))).status == 204
            assert await shown(c, server_id) == ""
            await idle(c)
            assert hosts.password == ""
            assert await report(c)
            assert await shown(c, server_id) == ""

    run(scenario())


def test_words_about_a_server_leave_its_password_alone(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with whole(sqlite_url, hosts=1) as c:
            server_id = (await c.active())["id"]
            hosts = await sealing(c)
            await c.put(f"/servers/{server_id}", {"server": {"name": "other"}})
            await idle(c)
            assert hosts.password == SEALED
            await report(c)
            assert await shown(c, server_id) == SEALED

    run(scenario())


def test_a_host_that_has_not_heard_of_it_yet_is_not_believed(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with whole(sqlite_url, hosts=1) as c:
            server_id = (await c.active())["id"]
            hosts = await sealing(c)
            await report(c)
            hosts.silent = True
            assert (await c.delete(PASSWORD.format(server_id=server_id))).status == 204
            async with asyncio.timeout(PATIENCE):
                while not await c.db.fetch_value("SELECT 1 FROM operations WHERE kind = 'tell guest later'"):
                    await asyncio.sleep(0.02)
            assert not await report(c)
            assert await shown(c, server_id) == ""

    run(scenario())


def test_a_rebuilt_guest_makes_another_one(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with whole(sqlite_url, hosts=1) as c:
            server_id = (await c.active())["id"]
            hosts = await sealing(c)
            await report(c)
            hosts.password = ""
            assert (await act(c, server_id, "rebuild", {"imageRef": c.image_id})).status == 202
            await idle(c)
            assert await shown(c, server_id) == ""

    run(scenario())
