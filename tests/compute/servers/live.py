"""What tests of live migrations share: having one under way, and seeing that all of a server is in one place."""

from __future__ import annotations

import asyncio
from typing import Any

from kilonova.hosts.messages import Command, HurryMigration
from kilonova.hosts.transport import Transport
from tests.compute.servers.moves import everything, migration
from tests.compute.servers.support import act, rules
from tests.support.whole import PATIENCE, Whole

ACTION = "os-migrateLive"
ANYWHERE = {"host": None, "block_migration": "auto"}


async def under_way(c: Whole, server_id: str, status: str = "running") -> dict[str, Any]:
    """The migration as soon as it has this status."""
    async with asyncio.timeout(PATIENCE):
        while (found := await migration(c, server_id))["status"] != status:
            await asyncio.sleep(0.005)
    return found


async def begin(c: Whole, server_id: str, body: dict[str, Any] = ANYWHERE) -> dict[str, Any]:
    """A migration that takes very long, as soon as the guest is on its way."""
    with rules(c) as sim:
        sim.set_latency("*", "migrate_live", 300)
    answer = await act(c, server_id, ACTION, body, as_="admin", version="2.80")
    assert answer.status == 202, answer.body
    return await on_its_way(c, server_id)


async def on_its_way(c: Whole, server_id: str) -> dict[str, Any]:
    """The migration as soon as the host tells of it."""
    async with asyncio.timeout(PATIENCE):
        while await c.db.fetch_value("SELECT MAX(transfer) FROM moves WHERE server_id = $1", server_id) is None:
            await asyncio.sleep(0.005)
    return await migration(c, server_id)


async def arrive(hosts: Transport, host: str, server_id: str) -> None:
    """The guest that is on its way from the host gets there now."""
    command = Command(host=host, operation="test", step="test", verb=HurryMigration(guest_id=server_id))
    await hosts.call(host, command)


def be_quick(c: Whole) -> None:
    with rules(c) as sim:
        sim.clear("*", "migrate_live")


async def at_home(c: Whole, server_id: str, host: str) -> None:
    """The server, its share, its ports and its guest are on this host, and nothing is anywhere else."""
    seen = await everything(c, server_id)
    assert seen["server"]["host"] == host
    assert {(share["consumer_uuid"], share["name"]) for share in seen["shares"]} == {(server_id, host)}
    assert [port["host_id"] for port in seen["ports"]] == [host]
    assert seen["standby"] == []
    assert seen["guests"] == [(host, server_id, "running", "")]
    assert seen["left"] == []
