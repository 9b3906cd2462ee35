"""Subnets: CIDRs, gateways and pools."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.network.support import net


def test_default_pool_excludes_gateway(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            _, subnet = await cloud.network_with_subnet("10.1.0.0/24", dns_nameservers=["9.9.9.9"])
            assert subnet["gateway_ip"] == "10.1.0.1"
            assert subnet["allocation_pools"] == [{"start": "10.1.0.2", "end": "10.1.0.254"}]
            assert (subnet["enable_dhcp"], subnet["dns_nameservers"], subnet["ip_version"]) == (True, ["9.9.9.9"], 4)
            _, split = await cloud.network_with_subnet("10.1.0.0/29", gateway_ip="10.1.0.3")
            assert split["allocation_pools"] == [
                {"start": "10.1.0.1", "end": "10.1.0.2"},
                {"start": "10.1.0.4", "end": "10.1.0.6"},
            ]
            _, six = await cloud.network_with_subnet("fd00::/64", gateway_ip=None)
            assert (six["gateway_ip"], six["ip_version"]) == (None, 6)
            assert six["allocation_pools"] == [{"start": "fd00::1", "end": "fd00::ffff:ffff:ffff:ffff"}]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("given", "stored", "gateway", "first", "last"),
    [
        ("10.99.99.0/16", "10.99.0.0/16", "10.99.0.1", "10.99.0.2", "10.99.255.254"),
        ("10.99.99.77/29", "10.99.99.72/29", "10.99.99.73", "10.99.99.74", "10.99.99.78"),
        ("fd00:1::9:5/112", "fd00:1::9:0/112", "fd00:1::9:1", "fd00:1::9:2", "fd00:1::9:ffff"),
    ],
)
def test_host_bits_of_a_cidr_are_dropped(
    database_url: str, given: str, stored: str, gateway: str, first: str, last: str
) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            network, subnet = await cloud.network_with_subnet(given)
            assert (subnet["cidr"], subnet["gateway_ip"]) == (stored, gateway)
            assert subnet["allocation_pools"] == [{"start": first, "end": last}]
            assert await cloud.show("subnet", subnet["id"]) == subnet
            assert [each["id"] for each in await cloud.list_all("subnet", {"cidr": stored})] == [subnet["id"]]
            port = await cloud.create("port", network_id=network["id"])
            assert port["fixed_ips"] == [{"subnet_id": subnet["id"], "ip_address": first}]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("cidr", "gateway", "first", "last"),
    [
        ("10.1.0.0/24", "192.168.77.1", "10.1.0.1", "10.1.0.254"),
        ("fd00:1::/64", "fd00:77::1", "fd00:1::1", "fd00:1::ffff:ffff:ffff:ffff"),
        ("fd00:1::/64", "fe80::1", "fd00:1::1", "fd00:1::ffff:ffff:ffff:ffff"),
    ],
)
def test_gateway_may_be_outside_the_subnet(database_url: str, cidr: str, gateway: str, first: str, last: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            network, subnet = await cloud.network_with_subnet(cidr, gateway_ip=gateway)
            assert subnet["gateway_ip"] == gateway
            assert subnet["allocation_pools"] == [{"start": first, "end": last}]
            port = await cloud.create("port", network_id=network["id"])
            assert port["fixed_ips"] == [{"subnet_id": subnet["id"], "ip_address": first}]
            path = f"/network-ip-availabilities/{network['id']}"
            shown = (await cloud.ok("GET", path, as_="admin"))["network_ip_availability"]
            assert shown["used_ips"] == 1
            moved = await cloud.update("subnet", subnet, gateway_ip=None)
            assert moved["gateway_ip"] is None
            assert (await cloud.update("subnet", subnet, gateway_ip=gateway))["gateway_ip"] == gateway
            # A router's interface would need the gateway's address in the subnet.
            router = await cloud.create("router")
            path = f"/routers/{router['id']}/add_router_interface"
            refused = await cloud.refused("PUT", path, {"subnet_id": subnet["id"]})
            assert refused == (400, "InvalidIpForSubnet")

    asyncio.run(scenario())


REFUSED: list[tuple[dict[str, Any], int, str]] = [
    ({"cidr": "10.0.0.0"}, 400, "InvalidInput"),
    ({"cidr": "0.0.0.0/0"}, 400, "InvalidInput"),
    ({"cidr": "nonsense"}, 400, "HTTPBadRequest"),
    ({"cidr": "fd00::/64"}, 400, "InvalidInput"),
    ({"gateway_ip": "10.0.0.0"}, 400, "GatewayIpInvalid"),
    ({"gateway_ip": "10.0.0.255"}, 400, "GatewayIpInvalid"),
    ({"gateway_ip": "127.0.0.1"}, 400, "GatewayIpInvalid"),
    ({"gateway_ip": "224.0.0.5"}, 400, "GatewayIpInvalid"),
    ({"gateway_ip": "0.0.0.0"}, 400, "GatewayIpInvalid"),
    ({"gateway_ip": "255.255.255.255"}, 400, "GatewayIpInvalid"),
    ({"gateway_ip": "fd00::1"}, 400, "InvalidInput"),
    ({"ip_version": 6, "cidr": "fd00::/64", "gateway_ip": "fd00::"}, 400, "GatewayIpInvalid"),
    ({"ip_version": 6, "cidr": "fd00::/64", "gateway_ip": "ff02::1"}, 400, "GatewayIpInvalid"),
    ({"allocation_pools": [{"start": "10.0.0.9", "end": "10.0.0.5"}]}, 400, "InvalidAllocationPool"),
    ({"allocation_pools": [{"start": "10.0.1.0", "end": "10.0.1.5"}]}, 400, "OutOfBoundsAllocationPool"),
    ({"allocation_pools": [{"start": "10.0.0.1", "end": "10.0.0.5"}]}, 409, "GatewayConflictWithAllocationPools"),
    (
        {
            "allocation_pools": [
                {"start": "10.0.0.2", "end": "10.0.0.5"},
                {"start": "10.0.0.5", "end": "10.0.0.9"},
            ]
        },
        409,
        "OverlappingAllocationPools",
    ),
    ({"ipv6_ra_mode": "slaac"}, 400, "InvalidInput"),
    ({"dns_nameservers": ["fe80::1%x\ndhcp-script=/bin/sh"]}, 400, "HTTPBadRequest"),
    ({"ip_version": 5}, 400, "HTTPBadRequest"),
    ({"host_routes": [{"destination": "10.9.0.0/16"}]}, 400, "HTTPBadRequest"),
    ({"subnetpool_id": "6a52b9b0-4b9d-4d0c-8f0b-2f5e0a3e5a53"}, 400, "HTTPBadRequest"),
]


def test_invalid_subnets_are_refused(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            network = await cloud.create("network")
            for wrong, status, kind in REFUSED:
                body = {"network_id": network["id"], "ip_version": 4, "cidr": "10.0.0.0/24", **wrong}
                assert await cloud.refused("POST", "/subnets", {"subnet": body}) == (status, kind), wrong
            assert await cloud.list_all("subnet") == []
            right = {"network_id": network["id"], "ip_version": 4, "cidr": "10.0.0.0/24"}
            await cloud.create("subnet", **right)
            inside = {**right, "cidr": "10.0.0.128/25"}
            assert await cloud.refused("POST", "/subnets", {"subnet": inside}) == (400, "InvalidInput")
            elsewhere = {**right, "network_id": "6a52b9b0-4b9d-4d0c-8f0b-2f5e0a3e5a53"}
            assert await cloud.refused("POST", "/subnets", {"subnet": elsewhere}) == (404, "NetworkNotFound")

    asyncio.run(scenario())


def test_invalid_subnet_updates_are_refused(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            _, subnet = await cloud.network_with_subnet("10.1.0.0/24")
            changed = await cloud.update(
                "subnet",
                subnet,
                name="s",
                enable_dhcp=False,
                dns_nameservers=["1.1.1.1"],
                host_routes=[{"destination": "10.9.0.0/16", "nexthop": "10.1.0.9"}],
                allocation_pools=[{"start": "10.1.0.10", "end": "10.1.0.20"}],
            )
            assert (changed["name"], changed["enable_dhcp"]) == ("s", False)
            path = f"/subnets/{subnet['id']}"
            wrong = {"subnet": {"gateway_ip": "10.1.0.15"}}
            assert await cloud.refused("PUT", path, wrong) == (409, "GatewayConflictWithAllocationPools")
            assert (await cloud.refused("PUT", path, {"subnet": {"cidr": "10.2.0.0/24"}}))[0] == 400
            assert await cloud.show("subnet", subnet["id"]) == changed
            assert (await cloud.update("subnet", subnet, gateway_ip=None))["gateway_ip"] is None

    asyncio.run(scenario())


def test_subnets_are_visible_with_their_network(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            shared = await cloud.create("network", "admin", shared=True)
            body = {"network_id": shared["id"], "ip_version": 4, "cidr": "10.0.0.0/24"}
            visible = await cloud.create("subnet", "admin", **body)
            _, hidden = await cloud.network_with_subnet("10.3.0.0/24", as_="other")
            assert [subnet["id"] for subnet in await cloud.list_all("subnet")] == [visible["id"]]
            assert (await cloud.show("subnet", visible["id"]))["id"] == visible["id"]
            assert (await cloud.refused("GET", f"/subnets/{hidden['id']}"))[0] == 404
            assert (await cloud.refused("DELETE", f"/subnets/{visible['id']}"))[0] == 403
            assert (await cloud.refused("POST", "/subnets", {"subnet": {**body, "cidr": "10.4.0.0/24"}}))[0] == 403
            assert len(await cloud.list_all("subnet", {"cidr": "10.3.0.0/24"}, as_="admin")) == 1
            assert len(await cloud.list_all("subnet", {"ip_version": "4", "enable_dhcp": "True"}, as_="admin")) == 2

    asyncio.run(scenario())


@pytest.mark.parametrize("mode", ["slaac", "dhcpv6-stateless"])
def test_autoconfigured_address_derives_from_mac(database_url: str, mode: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            network, subnet = await cloud.network_with_subnet("fd00:1::/64", ipv6_ra_mode=mode, ipv6_address_mode=mode)
            await cloud.create("subnet", network_id=network["id"], ip_version=4, cidr="10.0.0.0/24")
            port = await cloud.create("port", "admin", network_id=network["id"], mac_address="FA-16-3E-00-00-01")
            assert port["mac_address"] == "fa:16:3e:00:00:01"
            assert [fixed["ip_address"] for fixed in port["fixed_ips"]] == ["10.0.0.2", "fd00:1::f816:3eff:fe00:1"]
            assert port["fixed_ips"][1]["subnet_id"] == subnet["id"]

    asyncio.run(scenario())
