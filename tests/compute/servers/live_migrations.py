"""Helpers for tests of live migrations: start, complete and wait for one, and check where the server is."""

from __future__ import annotations

import asyncio
from typing import Any

from kilonova.hosts.messages import Command
from kilonova.hosts.messages.verbs import ForceCompleteMigration
from kilonova.hosts.transport import Transport
from tests.compute.servers.moves import dump_server, newest_migration
from tests.compute.servers.support import act, rules
from tests.support.full_cloud import TIMEOUT_SECONDS, FullCloud

ACTION = "os-migrateLive"
ANY_HOST = {"host": None, "block_migration": "auto"}


async def wait_for_status(c: FullCloud, server_id: str, status: str = "running") -> dict[str, Any]:
    """Wait until the newest migration has the status, and return it."""
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while (found := await newest_migration(c, server_id))["status"] != status:
            await asyncio.sleep(0.005)
    return found


async def start_slow_migration(c: FullCloud, server_id: str, body: dict[str, Any] = ANY_HOST) -> dict[str, Any]:
    """Start a live migration that takes 300 s, and return it when the transfer has begun."""
    with rules(c) as sim:
        sim.set_latency("*", "migrate_live", 300)
    answer = await act(c, server_id, ACTION, body, as_="admin", version="2.80")
    assert answer.status == 202, answer.body
    return await wait_for_transfer(c, server_id)


async def wait_for_transfer(c: FullCloud, server_id: str) -> dict[str, Any]:
    """Wait until the host has reported progress, and return the migration."""
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while await c.db.fetch_value("SELECT MAX(transfer) FROM moves WHERE server_id = $1", server_id) is None:
            await asyncio.sleep(0.005)
    return await newest_migration(c, server_id)


async def complete_migration(hosts: Transport, host: str, server_id: str) -> None:
    """Let the guest that migrates from the host arrive now."""
    command = Command(host=host, operation="test", step="test", verb=ForceCompleteMigration(guest_id=server_id))
    await hosts.call(host, command)


def clear_latency(c: FullCloud) -> None:
    with rules(c) as sim:
        sim.clear("*", "migrate_live")


async def assert_only_on(c: FullCloud, server_id: str, host: str) -> None:
    """The server, its allocation, its ports and its guest are on this host, and nothing is on another one."""
    found = await dump_server(c, server_id)
    assert found["server"]["host"] == host
    assert {(row["consumer_uuid"], row["name"]) for row in found["allocations"]} == {(server_id, host)}
    assert [port["host_id"] for port in found["ports"]] == [host]
    assert found["standby_bindings"] == []
    assert found["guests"] == [(host, server_id, "running", "")]
    assert found["unfinished"] == []
