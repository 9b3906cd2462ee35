"""Server groups during moves: a member counts on its host, its destination, and the host it may revert to."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kilonova.compute.server_groups import model as groups
from kilonova.compute.servers import scheduling
from kilonova.compute.servers.server import Server
from kilonova.scheduler import Candidate
from kilonova.store import Transaction
from tests.compute.servers.live_migrations import complete_migration, wait_for_transfer
from tests.compute.servers.moves import HOST
from tests.compute.servers.support import act, rules
from tests.compute.servers.test_server_groups import boot, boot_and_settle, create_group
from tests.support import run
from tests.support.full_cloud import TIMEOUT_SECONDS, FullCloud, full_cloud


async def start_move(c: FullCloud, server_id: str, action: str = "os-migrateLive", version: str = "2.68") -> None:
    body: Any = {"host": None, "block_migration": "auto"} if action == "os-migrateLive" else None
    answer = await act(c, server_id, action, body, as_="admin", version=version)
    assert answer.status == 202, answer.body


async def wait_for_idle(c: FullCloud, servers: list[dict[str, Any]]) -> list[str]:
    """Wait until some of the servers have no task, and return their ids."""
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while True:
            shown = [await c.show(server["id"]) for server in servers]
            if found := [server["id"] for server in shown if server["OS-EXT-STS:task_state"] is None]:
                return found
            await asyncio.sleep(0.01)


async def wait_for_claim_refusal(c: FullCloud, server_id: str) -> None:
    """Wait until the server's boot waits for a moving member of its group."""
    sql = "SELECT trouble FROM operations WHERE server_id = $1 AND finished_at IS NULL"
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while "is moving to another host" not in (await c.db.fetch_value(sql, server_id) or ""):
            await asyncio.sleep(0.01)


def test_concurrent_live_migrations_keep_anti_affinity(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=3) as c:
            hints = {"group": await create_group(c)}
            servers = [await boot_and_settle(c, hints) for _ in range(2)]
            with rules(c) as sim:
                sim.set_latency("*", "migrate_live", 300)
            for server in servers:
                await start_move(c, server["id"])
            (staying_id,) = await wait_for_idle(c, servers)
            (moving,) = [server for server in servers if server["id"] != staying_id]
            await wait_for_transfer(c, moving["id"])
            await complete_migration(c.hosts, moving[HOST], moving["id"])
            after = [await c.wait_until_settled(server["id"]) for server in servers]
            assert len({server[HOST] for server in after}) == 2
            moved = [one[HOST] != other[HOST] for one, other in zip(servers, after, strict=True)]
            assert sorted(moved) == [False, True]

    run(scenario())


def test_source_of_unconfirmed_resize_counts_for_anti_affinity(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2) as c:
            hints = {"group": await create_group(c)}
            first = await boot_and_settle(c, hints)
            await start_move(c, first["id"], "migrate")
            assert (await c.wait_until_settled(first["id"]))["status"] == "VERIFY_RESIZE"
            rejected = await boot_and_settle(c, hints)
            assert rejected["status"] == "ERROR", rejected
            assert "anti-affinity" in rejected["fault"]["message"]
            await act(c, first["id"], "confirmResize")
            await c.wait_until_settled(first["id"])
            assert (await boot_and_settle(c, hints))[HOST] == first[HOST]

    run(scenario())


def test_affinity_boot_waits_for_a_migrating_member(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=3) as c:
            hints = {"group": await create_group(c, "affinity")}
            first = await boot_and_settle(c, hints)
            with rules(c) as sim:
                sim.set_latency("*", "migrate_live", 300)
            await start_move(c, first["id"])
            await wait_for_transfer(c, first["id"])
            second_id = await boot(c, hints)
            await wait_for_claim_refusal(c, second_id)
            await complete_migration(c.hosts, first[HOST], first["id"])
            second = await c.wait_until_settled(second_id)
            assert second["status"] == "ACTIVE", second
            moved = await c.wait_until_settled(first["id"])
            assert moved[HOST] != first[HOST]
            assert second[HOST] == moved[HOST]

    run(scenario())


def test_affinity_boot_follows_a_member_whose_move_ends_during_the_claim(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2) as c:
            hints = {"group": await create_group(c, "affinity")}
            first, second = await boot_and_settle(c, hints), await boot_and_settle(c, hints)
            source, destination = first[HOST], next(name for name in c.hosts.names if name != first[HOST])

            async def has_just_moved(tx: Transaction, group_id: str, server_id: str) -> bool:
                await tx.execute("UPDATE servers SET host = $2 WHERE id = $1", first["id"], destination)
                return False

            monkeypatch.setattr(groups, "has_moving_member", has_just_moved)
            async with c.db.transaction() as tx:
                row = await tx.fetch_one("SELECT * FROM servers WHERE id = $1", second["id"])
                assert row is not None
                accepts = await scheduling.group_policy(tx, Server.decode(row))
                await tx.execute("UPDATE servers SET host = $2 WHERE id = $1", first["id"], source)
            assert accepts is not None
            assert [host for host in sorted(c.hosts.names) if accepts(Candidate("", host, host, {}))] == [destination]

    run(scenario())
