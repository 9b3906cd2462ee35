"""Servers of groups on the move: the group counts where they are, where they go, and where they may come back to."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.compute.servers.live import arrive, on_its_way
from tests.compute.servers.support import act, rules
from tests.compute.servers.test_server_groups import boot, group, settled
from tests.support import run
from tests.support.whole import PATIENCE, Whole, whole

HOST = "OS-EXT-SRV-ATTR:host"


async def leave(c: Whole, server_id: str, action: str = "os-migrateLive", version: str = "2.68") -> None:
    body: Any = {"host": None, "block_migration": "auto"} if action == "os-migrateLive" else None
    answer = await act(c, server_id, action, body, as_="admin", version=version)
    assert answer.status == 202, answer.body


async def idle(c: Whole, servers: list[dict[str, Any]]) -> list[str]:
    """Those to whom nothing happens, once there are some."""
    async with asyncio.timeout(PATIENCE):
        while True:
            shown = [await c.show(server["id"]) for server in servers]
            if found := [server["id"] for server in shown if server["OS-EXT-STS:task_state"] is None]:
                return found
            await asyncio.sleep(0.01)


def test_two_do_not_go_to_one_host(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=3) as c:
            hints = {"group": await group(c)}
            servers = [await settled(c, hints) for _ in range(2)]
            with rules(c) as sim:
                sim.set_latency("*", "migrate_live", 300)
            for server in servers:
                await leave(c, server["id"])
            (stays,) = await idle(c, servers)
            (goes,) = [server for server in servers if server["id"] != stays]
            await on_its_way(c, goes["id"])
            await arrive(c.hosts, goes[HOST], goes["id"])
            after = [await c.settled(server["id"]) for server in servers]
            assert len({server[HOST] for server in after}) == 2
            moved = [one[HOST] != other[HOST] for one, other in zip(servers, after, strict=True)]
            assert sorted(moved) == [False, True]

    run(scenario())


def test_nobody_takes_the_way_back_of_a_resized_server(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=2) as c:
            hints = {"group": await group(c)}
            first = await settled(c, hints)
            await leave(c, first["id"], "migrate")
            assert (await c.settled(first["id"]))["status"] == "VERIFY_RESIZE"
            refused = await settled(c, hints)
            assert refused["status"] == "ERROR", refused
            assert "anti-affinity" in refused["fault"]["message"]
            await act(c, first["id"], "confirmResize")
            await c.settled(first["id"])
            assert (await settled(c, hints))[HOST] == first[HOST]

    run(scenario())


def test_who_wants_to_be_with_a_moving_server_waits_for_it(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=3) as c:
            hints = {"group": await group(c, "affinity")}
            first = await settled(c, hints)
            with rules(c) as sim:
                sim.set_latency("*", "migrate_live", 300)
            await leave(c, first["id"])
            await on_its_way(c, first["id"])
            second_id = await boot(c, hints)
            await asyncio.sleep(0.3)
            await arrive(c.hosts, first[HOST], first["id"])
            second = await c.settled(second_id)
            assert second["status"] == "ACTIVE", second
            moved = await c.settled(first["id"])
            assert moved[HOST] != first[HOST]
            assert second[HOST] == moved[HOST]

    run(scenario())
