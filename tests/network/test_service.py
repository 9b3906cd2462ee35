"""The service as a whole: documents, extensions, quotas, zones, availability; and compute's client of it."""

from __future__ import annotations

import asyncio

import pytest

from kilonova.http.client import InProcess, Unreachable
from kilonova.network.client import NetworkClient, NetworkError
from tests.network.support import net
from tests.support.cloud import DEMO, OTHER


def test_documents(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with net(sqlite_url) as cloud:
            versions = (await cloud.request("GET", "", root="/network", as_=None)).json()["versions"]
            assert [(version["id"], version["status"]) for version in versions] == [("v2.0", "CURRENT")]
            assert versions[0]["links"][0]["href"] == "http://localhost/network/v2.0/"
            assert (await cloud.call("GET", "", as_=None)).json()["resources"]
            aliases = {item["alias"] for item in (await cloud.ok("GET", "/extensions"))["extensions"]}
            assert {"security-group", "binding", "router", "external-net", "port-security", "provider"} <= aliases
            for alias in aliases:
                await cloud.ok("GET", f"/extensions/{alias}")
            assert (await cloud.refused("GET", "/extensions/trunk"))[0] == 404
            assert (await cloud.ok("GET", "/agents", as_="admin")) == {"agents": []}
            assert (await cloud.ok("GET", "/agents")) == {"agents": []}
            zones = (await cloud.ok("GET", "/availability_zones"))["availability_zones"]
            assert {zone["resource"] for zone in zones} == {"network", "router"}
            assert (await cloud.refused("GET", "/trunks"))[0] == 404

    asyncio.run(scenario())


def test_quotas_are_counted_where_resources_are_made(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            path = f"/quotas/{DEMO}"
            assert (await cloud.ok("GET", path))["quota"]["port"] == -1
            assert (await cloud.refused("GET", f"/quotas/{OTHER}"))[0] == 403
            assert (await cloud.refused("PUT", path, {"quota": {"network": 1}}))[0] == 403
            changed = await cloud.ok("PUT", path, {"quota": {"network": 1, "port": 2}}, "admin")
            assert changed["quota"]["network"] == 1
            network, _ = await cloud.network_with_subnet()
            assert await cloud.refused("POST", "/networks", {"network": {}}) == (409, "OverQuota")
            body = {"ports": [{"network_id": network["id"]}] * 3}
            assert await cloud.refused("POST", "/ports", body) == (409, "OverQuota")
            answers = await asyncio.gather(
                *(cloud.call("POST", "/ports", {"port": {"network_id": network["id"]}}) for _ in range(6))
            )
            assert sorted(answer.status for answer in answers) == [201, 201, 409, 409, 409, 409]
            details = (await cloud.ok("GET", f"{path}/details.json"))["quota"]
            assert details["port"] == {"limit": 2, "used": 2, "reserved": 0}
            await cloud.ok("DELETE", path, as_="admin")
            assert (await cloud.ok("GET", path))["quota"] == (await cloud.ok("GET", f"{path}/default"))["quota"]
            assert (await cloud.refused("DELETE", path, as_="admin"))[0] == 404

    asyncio.run(scenario())


def test_availability_counts_addresses(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            network, _ = await cloud.network_with_subnet("10.1.0.0/29")
            await cloud.make("subnet", network_id=network["id"], ip_version=6, cidr="fd00::/48")
            await cloud.make("port", network_id=network["id"])
            path = f"/network-ip-availabilities/{network['id']}"
            shown = (await cloud.ok("GET", path, as_="admin"))["network_ip_availability"]
            assert shown["used_ips"] == 2
            four = next(item for item in shown["subnet_ip_availability"] if item["ip_version"] == 4)
            assert (four["total_ips"], four["used_ips"]) == (5, 1)
            assert (await cloud.refused("GET", path))[0] == 403

    asyncio.run(scenario())


def test_the_client(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            client = NetworkClient(InProcess(cloud.app, "/network"))
            assert await client.available(DEMO, "member") == []
            auto = await client.auto_allocate(DEMO, "member")
            shared = await cloud.make("network", "admin", name="shared", shared=True)
            await cloud.make("network", "other", name="theirs")
            for token in ("member", "project-admin"):
                found = await client.available(DEMO, token)
                assert [network["name"] for network in found] == ["auto_allocated_network", "shared"]
            assert [network["id"] for network in await client.networks([auto["id"], OTHER], "member")] == [auto["id"]]
            assert await client.network(OTHER, "member") is None
            assert await client.port(OTHER, "member") is None
            assert await client.create_ports([], "service") == []
            wanted = {"network_id": auto["id"], "project_id": DEMO, "device_id": "s"}
            ports = await client.create_ports([{**wanted, "name": name} for name in "ab"], "service")
            assert [port["name"] for port in ports] == ["a", "b"]
            bound = await client.update_port(ports[0]["id"], {"binding:host_id": "h"}, "service")
            assert bound["status"] == "ACTIVE"
            assert len(await client.ports_of("s", "service")) == 2
            await client.delete_ports([ports[0]["id"], ports[1]["id"], OTHER], "service")
            assert await client.ports_of("s", "service") == []
            (group,) = await client.security_groups(DEMO, "member", "default")
            assert group["name"] == "default"
            with pytest.raises(NetworkError) as refused:
                await client.create_ports(
                    [{"network_id": shared["id"], "fixed_ips": [{"ip_address": "9.9.9.9"}]}], "admin"
                )
            assert (refused.value.status, refused.value.kind) == (400, "InvalidIpForNetwork")
            assert "9.9.9.9" in str(refused.value)
            await cloud.db.close()
            with pytest.raises(Unreachable):
                await client.available(DEMO, "member")

    asyncio.run(scenario())
