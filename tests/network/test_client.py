"""The network client against the built-in service."""

from __future__ import annotations

import asyncio

import pytest

from kilonova.http.client import InProcess, Unreachable
from kilonova.network.client import NetworkClient, NetworkError
from tests.network.support import net
from tests.support.cloud import DEMO, OTHER


def test_client_manages_networks_and_ports(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            client = NetworkClient(InProcess(cloud.app, "/network"))
            assert await client.available_networks(DEMO, "member") == []
            auto = await client.auto_allocate(DEMO, "member")
            shared = await cloud.create("network", "admin", name="shared", shared=True)
            await cloud.create("network", "other", name="theirs")
            for token in ("member", "project-admin"):
                found = await client.available_networks(DEMO, token)
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
            assert len(await client.ports_of_device("s", "service")) == 2
            await client.delete_ports([ports[0]["id"], ports[1]["id"], OTHER], "service")
            assert await client.ports_of_device("s", "service") == []
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
                await client.available_networks(DEMO, "member")

    asyncio.run(scenario())
