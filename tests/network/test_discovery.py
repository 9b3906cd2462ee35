"""Version documents, extensions, agents and availability zones."""

from __future__ import annotations

import asyncio

from tests.network.support import net


def test_discovery_documents(sqlite_url: str) -> None:
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
            assert (await cloud.refused("GET", "/extensions/qos"))[0] == 404
            for caller in ("admin", "member"):
                assert (await cloud.ok("GET", "/agents", as_=caller)) == {"agents": []}
            zones = (await cloud.ok("GET", "/availability_zones"))["availability_zones"]
            assert {zone["resource"] for zone in zones} == {"network", "router"}
            assert (await cloud.refused("GET", "/qos/policies"))[0] == 404
            provider = {"service_type": "L3_ROUTER_NAT", "name": "kilonova", "default": True}
            assert await cloud.ok("GET", "/service-providers") == {"service_providers": [provider]}
            of_type = "/service-providers?service_type="
            assert await cloud.ok("GET", f"{of_type}L3_ROUTER_NAT") == {"service_providers": [provider]}
            assert await cloud.ok("GET", f"{of_type}VPN") == {"service_providers": []}

    asyncio.run(scenario())
