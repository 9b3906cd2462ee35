"""Network quotas."""

from __future__ import annotations

import asyncio

from tests.network.support import net
from tests.support.cloud import DEMO, OTHER


def test_quota_limits_creation(database_url: str) -> None:
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
            responses = await asyncio.gather(
                *(cloud.call("POST", "/ports", {"port": {"network_id": network["id"]}}) for _ in range(6))
            )
            assert sorted(response.status for response in responses) == [201, 201, 409, 409, 409, 409]
            details = (await cloud.ok("GET", f"{path}/details.json"))["quota"]
            assert details["port"] == {"limit": 2, "used": 2, "reserved": 0}
            await cloud.ok("DELETE", path, as_="admin")
            assert (await cloud.ok("GET", path))["quota"] == (await cloud.ok("GET", f"{path}/default"))["quota"]
            assert (await cloud.refused("DELETE", path, as_="admin"))[0] == 404

    asyncio.run(scenario())


def test_limits_below_usage_are_refused_on_request(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            path = f"/quotas/{DEMO}"
            for _ in range(2):
                await cloud.ok("POST", "/networks", {"network": {}})
            below = {"network": 1, "subnet": 5, "check_limit": True}
            assert await cloud.refused("PUT", path, {"quota": below}, "admin") == (409, "InvalidQuotaValue")
            assert (await cloud.ok("GET", path))["quota"]["subnet"] != 5
            for limit in (2, -1):
                body = {"quota": {"network": limit, "check_limit": True}}
                assert (await cloud.ok("PUT", path, body, "admin"))["quota"]["network"] == limit
            for flags in ({"check_limit": False}, {"force": True}, {}):
                body = {"quota": {"network": 1, **flags}}
                assert (await cloud.ok("PUT", path, body, "admin"))["quota"]["network"] == 1
            assert (await cloud.refused("PUT", path, {"quota": {"check_limit": "x"}}, "admin"))[0] == 400

    asyncio.run(scenario())
