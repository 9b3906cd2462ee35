"""The seeded networks of a new cloud."""

from __future__ import annotations

import asyncio

from kilonova.network.seed import seed
from tests.network.support import net
from tests.support.cloud import ADMIN


def test_seed_creates_networks_once(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            network_id = await seed(cloud.db, ADMIN)
            assert await seed(cloud.db, ADMIN) == network_id
            assert sorted(await cloud.names("network")) == ["private", "public"]
            port = await cloud.create("port", network_id=network_id)
            assert port["fixed_ips"][0]["ip_address"] == "10.0.0.2"
            (public,) = await cloud.list_all("network", {"router:external": "True"})
            floating = await cloud.create("floatingip", floating_network_id=public["id"], port_id=port["id"])
            assert floating["status"] == "ACTIVE"
            assert floating["floating_ip_address"].startswith("192.0.2.")

    asyncio.run(scenario())
