"""Scheduling of new servers: full, disabled and down hosts, and the fault if no host remains."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from tests.compute.servers.support import NO_RESOURCES, act, count_server_resources, make_flavor
from tests.support import run
from tests.support.full_cloud import FullCloud, full_cloud

UNLIMITED: dict[str, Any] = {"quota__instances": -1, "quota__cores": -1, "quota__ram": -1}


async def find_overcommitted(c: FullCloud) -> list[Any]:
    """Inventories whose allocations exceed the capacity."""
    return await c.db.fetch(
        "SELECT i.provider_id, i.resource_class, SUM(a.used) AS used FROM inventories i JOIN allocations a"
        " ON a.provider_id = i.provider_id AND a.resource_class = i.resource_class"
        " GROUP BY i.provider_id, i.resource_class, i.total, i.reserved, i.allocation_ratio"
        " HAVING SUM(a.used) > (i.total - i.reserved) * i.allocation_ratio"
    )


async def count_by_host(c: FullCloud, servers: list[dict[str, Any]]) -> Counter[str]:
    """The number of servers on each host. Checks that their guests run there."""
    guests = await c.guests()
    for server in servers:
        assert guests[server["id"]] == (server["OS-EXT-SRV-ATTR:host"], "running")
    return Counter(server["OS-EXT-SRV-ATTR:host"] for server in servers)


def test_concurrent_boots_never_overcommit_hosts(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=3, **UNLIMITED) as c:
            # Each host has 15872 MB: one large server, and two that need half of the rest each.
            await make_flavor(c, "large", ram=8192)
            await make_flavor(c, "half", ram=3840)
            before = await asyncio.gather(*(c.boot_active(flavorRef="large") for _ in range(3)))
            assert set((await count_by_host(c, before)).values()) == {1}
            made = await asyncio.gather(*(c.boot(flavorRef="half") for _ in range(16)))
            shown = [await c.wait_until_settled(server["id"]) for server in made]
            active = [server for server in shown if server["status"] == "ACTIVE"]
            assert set((await count_by_host(c, active)).values()) == {2}
            assert len(active) == 6
            for server in shown:
                if server["status"] != "ACTIVE":
                    assert server["fault"]["message"] == "No valid host was found: 3 hosts: 3 lack 3840 MB memory"
                    assert await count_server_resources(c, server["id"]) == NO_RESOURCES
            assert await find_overcommitted(c) == []
            # Released memory is available at once.
            await c.delete(f"/servers/{active[0]['id']}")
            await c.wait_until_deleted(active[0]["id"])
            again = await c.boot_active(flavorRef="half")
            assert again["OS-EXT-SRV-ATTR:host"] == active[0]["OS-EXT-SRV-ATTR:host"]

    run(scenario())


def test_fault_names_the_missing_resource(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2, **UNLIMITED) as c:
            for lacking, keys in (
                ("2 cannot give one server 9 VCPU", {"vcpus": 9}),
                ("2 lack 16000 MB memory", {"ram": 16000}),
                ("2 lack 101 GB disk", {"disk": 101}),
            ):
                flavor = await make_flavor(c, next(iter(keys)), **keys)
                server_id = (await c.boot(flavorRef=flavor))["id"]
                shown = await c.wait_until_settled(server_id)
                assert shown["status"] == "ERROR"
                assert shown["OS-EXT-STS:vm_state"] == "error"
                assert shown["fault"]["message"] == f"No valid host was found: 2 hosts: {lacking}"
                assert shown["fault"]["code"] == 500
                assert shown["OS-EXT-SRV-ATTR:host"] is None
                assert shown["hostId"] == ""
                assert await count_server_resources(c, server_id) == NO_RESOURCES
                # Only administrators see the details, which may name hosts.
                assert "details" not in (await c.show(server_id, as_="member"))["fault"]

    run(scenario())


def test_disabled_hosts_get_no_new_servers(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=3) as c:
            existing = await c.boot_active(availability_zone="nova:sim-001", as_="admin")
            for host in ("sim-001", "sim-003"):
                body = {"host": host, "binary": "nova-compute"}
                assert (await c.put("/os-services/disable", body, as_="admin")).status == 200
            servers = await asyncio.gather(*(c.boot_active() for _ in range(5)))
            assert await count_by_host(c, servers) == {"sim-002": 5}
            # Existing servers stay usable.
            assert (await act(c, existing["id"], "reboot", {"type": "HARD"}, as_="admin")).status == 202
            assert (await c.wait_until_settled(existing["id"]))["status"] == "ACTIVE"
            assert (await c.show(existing["id"]))["host_status"] == "MAINTENANCE"
            body = {"host": "sim-002", "binary": "nova-compute"}
            await c.put("/os-services/disable", body, as_="admin")
            shown = await c.wait_until_settled((await c.boot())["id"])
            assert shown["fault"]["message"] == "No valid host was found: 3 hosts: 3 disabled"
            await c.put("/os-services/enable", {"host": "sim-003", "binary": "nova-compute"}, as_="admin")
            assert (await c.boot_active())["OS-EXT-SRV-ATTR:host"] == "sim-003"

    run(scenario())


def test_forced_down_hosts_get_no_new_servers(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2) as c:
            body = {"host": "sim-001", "binary": "nova-compute", "forced_down": True}
            assert (await c.put("/os-services/force-down", body, as_="admin", version="2.11")).status == 200
            servers = await asyncio.gather(*(c.boot_active() for _ in range(3)))
            assert await count_by_host(c, servers) == {"sim-002": 3}

    run(scenario())


def test_servers_spread_over_empty_hosts(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=3) as c:
            servers = [await c.boot_active() for _ in range(6)]
            assert set((await count_by_host(c, servers)).values()) == {2}

    run(scenario())
