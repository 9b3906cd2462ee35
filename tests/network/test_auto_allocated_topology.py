"""The auto-allocated topology of a project."""

from __future__ import annotations

import asyncio

from tests.network.support import (
    create_external_network,
    net,
)
from tests.support.cloud import DEMO


def test_auto_allocated_topology_is_created_on_demand(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            await create_external_network(cloud)
            path = f"/auto-allocated-topology/{DEMO}"
            dry = await cloud.ok("GET", f"{path}?fields=dry-run")
            assert dry["auto_allocated_topology"]["id"] == "dry-run=pass"
            assert await cloud.names("network") == ["public"]
            responses = await asyncio.gather(*(cloud.ok("GET", path) for _ in range(4)))
            (network_id,) = {response["auto_allocated_topology"]["id"] for response in responses}
            network = await cloud.show("network", network_id)
            assert (network["name"], network["project_id"]) == ("auto_allocated_network", DEMO)
            assert await cloud.names("router") == ["auto_allocated_router"]
            port = await cloud.create("port", network_id=network_id)
            assert port["fixed_ips"][0]["ip_address"] == "10.64.0.2"
            assert (await cloud.refused("GET", path, as_="other"))[0] == 403
            assert await cloud.refused("DELETE", path) == (409, "NetworkInUse")
            await cloud.ok("DELETE", f"/ports/{port['id']}")
            await cloud.ok("DELETE", path)
            assert (await cloud.names("network"), await cloud.names("router")) == (["public"], [])
            assert (await cloud.refused("DELETE", path))[0] == 404

    asyncio.run(scenario())
