"""Network IP availabilities."""

from __future__ import annotations

import asyncio

from tests.network.support import net


def test_ip_availability_counts_used_addresses(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            network, _ = await cloud.network_with_subnet("10.1.0.0/29")
            await cloud.create("subnet", network_id=network["id"], ip_version=6, cidr="fd00::/48")
            await cloud.create("port", network_id=network["id"])
            path = f"/network-ip-availabilities/{network['id']}"
            shown = (await cloud.ok("GET", path, as_="admin"))["network_ip_availability"]
            assert shown["used_ips"] == 2
            four = next(item for item in shown["subnet_ip_availability"] if item["ip_version"] == 4)
            assert (four["total_ips"], four["used_ips"]) == (5, 1)
            assert (await cloud.refused("GET", path))[0] == 403

    asyncio.run(scenario())
