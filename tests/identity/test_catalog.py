"""The service catalogue."""

from __future__ import annotations

from pathlib import Path

from tests.identity.support import cloud
from tests.support import run


def test_catalog_is_read_only(sqlite_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url, tmp_path) as c:
            admin = await c.login("admin")
            services = (await c.ok("GET", "/v3/services?type=compute", admin))["services"]
            assert [service["name"] for service in services] == ["nova"]
            service_id = services[0]["id"]
            assert (await c.ok("GET", f"/v3/services/{service_id}", admin))["service"] == services[0]
            query = f"service_id={service_id}&interface=public"
            (endpoint,) = (await c.ok("GET", f"/v3/endpoints?{query}", admin))["endpoints"]
            assert endpoint["url"] == "http://cloud.test:1234/compute/v2.1"
            assert (await c.ok("GET", f"/v3/endpoints/{endpoint['id']}", admin))["endpoint"] == endpoint
            assert [region["id"] for region in (await c.ok("GET", "/v3/regions", admin))["regions"]] == ["RegionOne"]
            assert (await c.ok("GET", "/v3/regions/RegionOne", admin))["region"]["id"] == "RegionOne"
            for path in ("services/none", "endpoints/none", "regions/none"):
                assert (await c.call("GET", f"/v3/{path}", admin)).status == 404
            for method, path in (
                ("POST", "services"),
                ("PATCH", f"services/{service_id}"),
                ("DELETE", f"endpoints/{endpoint['id']}"),
                ("PUT", "regions/RegionTwo"),
            ):
                response = await c.call(method, f"/v3/{path}", admin, {})
                assert response.status == 501
                assert "configuration" in response.json()["error"]["message"]
            assert (await c.call("POST", "/v3/services", await c.login("demo"), {})).status == 403

    run(scenario())
