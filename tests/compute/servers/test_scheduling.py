"""Where servers go: never onto a host that is full, off, elsewhere or broken; and what is said when none is left."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import orjson

from tests.compute.servers.support import NOTHING, act, holdings, make_flavor, rules
from tests.support import run
from tests.support.cloud import fault
from tests.support.whole import Whole, whole

UNLIMITED: dict[str, Any] = {"quota__instances": -1, "quota__cores": -1, "quota__ram": -1}


async def overcommitted(c: Whole) -> list[Any]:
    """Hosts that have given away more than they have."""
    return await c.db.fetch(
        "SELECT i.provider_id, i.resource_class, SUM(a.used) AS used FROM inventories i JOIN allocations a"
        " ON a.provider_id = i.provider_id AND a.resource_class = i.resource_class"
        " GROUP BY i.provider_id, i.resource_class, i.total, i.reserved, i.allocation_ratio"
        " HAVING SUM(a.used) > (i.total - i.reserved) * i.allocation_ratio"
    )


async def hosts_of(c: Whole, servers: list[dict[str, Any]]) -> Counter[str]:
    """How many of the servers are on each host; their guests are there and nowhere else."""
    guests = await c.guests()
    for server in servers:
        assert guests[server["id"]] == (server["OS-EXT-SRV-ATTR:host"], "running")
    return Counter(server["OS-EXT-SRV-ATTR:host"] for server in servers)


def test_many_at_once_on_hosts_that_are_nearly_full(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=3, **UNLIMITED) as c:
            # 15872 MB are to be had on each host: one large server, then two of half the rest.
            await make_flavor(c, "large", ram=8192)
            await make_flavor(c, "half", ram=3840)
            before = await asyncio.gather(*(c.active(flavorRef="large") for _ in range(3)))
            assert set((await hosts_of(c, before)).values()) == {1}
            made = await asyncio.gather(*(c.boot(flavorRef="half") for _ in range(16)))
            shown = [await c.settled(server["id"]) for server in made]
            active = [server for server in shown if server["status"] == "ACTIVE"]
            assert set((await hosts_of(c, active)).values()) == {2}
            assert len(active) == 6
            for server in shown:
                if server["status"] != "ACTIVE":
                    assert server["fault"]["message"] == "No valid host was found: 3 hosts: 3 lack 3840 MB memory"
                    assert await holdings(c, server["id"]) == NOTHING
            assert await overcommitted(c) == []
            # What is given back can be had again, at once.
            await c.delete(f"/servers/{active[0]['id']}")
            await c.gone(active[0]["id"])
            again = await c.active(flavorRef="half")
            assert again["OS-EXT-SRV-ATTR:host"] == active[0]["OS-EXT-SRV-ATTR:host"]

    run(scenario())


def test_no_room_names_what_is_lacking(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=2, **UNLIMITED) as c:
            for lacking, keys in (
                ("2 cannot give one server 9 VCPU", {"vcpus": 9}),
                ("2 lack 16000 MB memory", {"ram": 16000}),
                ("2 lack 101 GB disk", {"disk": 101}),
            ):
                flavor = await make_flavor(c, next(iter(keys)), **keys)
                server_id = (await c.boot(flavorRef=flavor))["id"]
                shown = await c.settled(server_id)
                assert shown["status"] == "ERROR"
                assert shown["OS-EXT-STS:vm_state"] == "error"
                assert shown["fault"]["message"] == f"No valid host was found: 2 hosts: {lacking}"
                assert shown["fault"]["code"] == 500
                assert shown["OS-EXT-SRV-ATTR:host"] is None
                assert shown["hostId"] == ""
                assert await holdings(c, server_id) == NOTHING
                # The reason is for everybody; what an error page may say about hosts is not.
                assert "details" not in (await c.show(server_id, as_="member"))["fault"]

    run(scenario())


class TestBrokenHosts:
    def test_the_next_host_gets_its_chance(self, database_url: str) -> None:
        async def scenario() -> None:
            async with whole(database_url, hosts=3) as c:
                with rules(c) as sim:
                    for host in ("sim-001", "sim-003"):
                        sim.add_failure(host, "spawn", "error", None, "the disk is on fire")
                servers = await asyncio.gather(*(c.active() for _ in range(4)))
                assert await hosts_of(c, servers) == {"sim-002": 4}
                for server in servers:
                    assert "fault" not in server
                    assert await holdings(c, server["id"]) == {"allocations": 3, "ports": 1, "guests": 1}
                assert len(await c.guests()) == 4

        run(scenario())

    def test_where_every_host_fails_nothing_is_left(self, database_url: str) -> None:
        async def scenario() -> None:
            async with whole(database_url, hosts=4) as c:
                with rules(c) as sim:
                    sim.add_failure("*", "spawn", "error", None, "the disk of sim-001 is on fire")
                server_id = (await c.boot())["id"]
                shown = await c.settled(server_id)
                assert shown["status"] == "ERROR"
                message = "No valid host was found: 3 hosts could not build the server: 3 refused by the hypervisor"
                assert shown["fault"]["message"] == message
                assert shown["fault"]["details"].count(": the disk of sim-001 is on fire") == 3
                assert "sim-00" not in orjson.dumps(await c.show(server_id, as_="member")).decode()
                assert shown["OS-EXT-SRV-ATTR:host"] is None
                assert await holdings(c, server_id) == NOTHING
                assert "details" not in (await c.show(server_id, as_="member"))["fault"]
                for action, body in (("os-stop", None), ("os-start", None), ("reboot", {"type": "HARD"})):
                    assert fault(await act(c, server_id, action, body))[:2] == (409, "conflictingRequest")

        run(scenario())

    def test_fewer_hosts_than_tries_says_so_too(self, database_url: str) -> None:
        async def scenario() -> None:
            async with whole(database_url, hosts=2) as c:
                with rules(c) as sim:
                    sim.add_failure("*", "spawn", "error", None, "the disk is on fire")
                shown = await c.settled((await c.boot())["id"])
                assert shown["status"] == "ERROR"
                assert shown["fault"]["message"].startswith("No valid host was found: 2 hosts: 2 ")
                assert shown["fault"]["message"].endswith("Tried before: 2 refused by the hypervisor")
                assert shown["fault"]["details"].count(": the disk is on fire") == 2
                assert await holdings(c, shown["id"]) == NOTHING

        run(scenario())

    def test_a_host_that_is_only_late_is_asked_again(self, database_url: str) -> None:
        async def scenario() -> None:
            async with whole(database_url, hosts=1) as c:
                with rules(c) as sim:
                    sim.add_failure("*", "spawn", "unreachable", 2, None)
                await c.active()

        run(scenario())


def test_disabled_services_get_nothing_new(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=3) as c:
            there = await c.active(availability_zone="nova:sim-001", as_="admin")
            for host in ("sim-001", "sim-003"):
                body = {"host": host, "binary": "nova-compute"}
                assert (await c.put("/os-services/disable", body, as_="admin")).status == 200
            servers = await asyncio.gather(*(c.active() for _ in range(5)))
            assert await hosts_of(c, servers) == {"sim-002": 5}
            # What is there stays there, and can be used.
            assert (await act(c, there["id"], "reboot", {"type": "HARD"}, as_="admin")).status == 202
            assert (await c.settled(there["id"]))["status"] == "ACTIVE"
            assert (await c.show(there["id"]))["host_status"] == "MAINTENANCE"
            body = {"host": "sim-002", "binary": "nova-compute"}
            await c.put("/os-services/disable", body, as_="admin")
            shown = await c.settled((await c.boot())["id"])
            assert shown["fault"]["message"] == "No valid host was found: 3 hosts: 3 disabled"
            await c.put("/os-services/enable", {"host": "sim-003", "binary": "nova-compute"}, as_="admin")
            assert (await c.active())["OS-EXT-SRV-ATTR:host"] == "sim-003"

    run(scenario())


def test_hosts_that_are_down_get_nothing_new(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=2) as c:
            body = {"host": "sim-001", "binary": "nova-compute", "forced_down": True}
            assert (await c.put("/os-services/force-down", body, as_="admin", version="2.11")).status == 200
            servers = await asyncio.gather(*(c.active() for _ in range(3)))
            assert await hosts_of(c, servers) == {"sim-002": 3}

    run(scenario())


def test_servers_spread_over_empty_hosts(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=3) as c:
            servers = [await c.active() for _ in range(6)]
            assert set((await hosts_of(c, servers)).values()) == {2}

    run(scenario())
