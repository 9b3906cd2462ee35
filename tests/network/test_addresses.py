"""Allocation of addresses: concurrent requests never get the same address."""

from __future__ import annotations

import asyncio
import ipaddress
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from kilonova.network import addresses
from tests.network.support import net


def test_parallel_ports_get_distinct_addresses(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            network, _ = await cloud.network_with_subnet("10.1.0.0/24")
            body = {"port": {"network_id": network["id"]}}
            responses = await asyncio.gather(*(cloud.call("POST", "/ports", body) for _ in range(200)))
            assert Counter(response.status for response in responses) == {201: 200}
            created = [response.json()["port"] for response in responses]
            assert len({port["fixed_ips"][0]["ip_address"] for port in created}) == 200
            assert len({port["mac_address"] for port in created}) == 200

    asyncio.run(scenario())


def test_parallel_processes_allocate_distinct_addresses(postgresql_url: str) -> None:
    """Each process has its own cursors; the database decides."""

    async def scenario() -> None:
        async with net(postgresql_url) as one, net(postgresql_url) as two:
            network, _ = await one.network_with_subnet("10.1.0.0/26")
            body = {"port": {"network_id": network["id"]}}
            found = []
            for _ in range(10):
                for cloud in (one, two):
                    found += await asyncio.gather(*(cloud.call("POST", "/ports", body) for _ in range(3)))
            assert {response.status for response in found} == {201}
            assert len({response.json()["port"]["fixed_ips"][0]["ip_address"] for response in found}) == 60
            responses = await asyncio.gather(*(one.call("POST", "/ports", body) for _ in range(4)))
            assert sorted(response.status for response in responses) == [201, 409, 409, 409]

    asyncio.run(scenario())


def test_released_addresses_are_reused_last(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            network, _ = await cloud.network_with_subnet(
                "10.1.0.0/24",
                allocation_pools=[
                    {"start": "10.1.0.10", "end": "10.1.0.12"},
                    {"start": "10.1.0.20", "end": "10.1.0.21"},
                ],
            )

            async def port() -> tuple[str, str]:
                created = await cloud.create("port", network_id=network["id"])
                return created["id"], created["fixed_ips"][0]["ip_address"]

            first, address = await port()
            assert address == "10.1.0.10"
            await cloud.ok("DELETE", f"/ports/{first}")
            assert [(await port())[1] for _ in range(4)] == ["10.1.0.11", "10.1.0.12", "10.1.0.20", "10.1.0.21"]
            assert (await port())[1] == "10.1.0.10"
            cloud.services.address_cursors.clear()  # as after a restart
            assert (await cloud.refused("POST", "/ports", {"port": {"network_id": network["id"]}}))[0] == 409

    asyncio.run(scenario())


def test_allocation_in_large_ipv6_subnet(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            network, _ = await cloud.network_with_subnet("fd00::/48")
            far = "fd00::ffff:ffff:ffff:ffff:fff0"
            for wish, given_address in ((None, "fd00::2"), ([{"ip_address": far}], far), (None, "fd00::3")):
                port = await cloud.create("port", network_id=network["id"], fixed_ips=wish)
                assert port["fixed_ips"][0]["ip_address"] == given_address
            body = {
                "port": {
                    "network_id": network["id"],
                    "fixed_ips": [{"ip_address": "FD00:0:0:FFFF:FFFF:FFFF:FFFF:FFF0"}],
                }
            }
            assert await cloud.refused("POST", "/ports", body) == (409, "IpAddressAlreadyAllocated")
            body = {"port": {"network_id": network["id"], "fixed_ips": [{"ip_address": "fd00::9%eth0"}]}}
            assert (await cloud.refused("POST", "/ports", body))[0] == 400

    asyncio.run(scenario())


@given(prefix=st.integers(8, 32), gateway=st.integers(0, 300))
def test_default_pools_have_all_usable_addresses_except_gateway(prefix: int, gateway: int) -> None:
    network = ipaddress.ip_network((0x0A000000, prefix))
    if gateway >= network.num_addresses:
        return
    chosen = network[gateway]
    pools = addresses.default_pools(network, chosen)
    held = sum(int(ipaddress.ip_address(pool.end)) - int(ipaddress.ip_address(pool.start)) + 1 for pool in pools)
    usable = network.num_addresses - (2 if prefix < 31 else 0)
    assert held == usable - addresses.is_usable(network, chosen)
    for pool in pools:
        assert addresses.is_usable(network, ipaddress.ip_address(pool.start))
        assert addresses.is_usable(network, ipaddress.ip_address(pool.end))
