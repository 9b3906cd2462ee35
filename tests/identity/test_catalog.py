"""The service catalogue: the cloud's own services, and registered services, endpoints and regions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.identity.support import SYSTEM, Cloud, cloud, password_auth, project_scope
from tests.support import run


async def make(c: Cloud, token: str, noun: str, **values: Any) -> dict[str, Any]:
    made = await c.ok("POST", f"/v3/{noun}s", token, {noun: values})
    return dict(made[noun])


async def catalog(c: Cloud, name: str = "demo", scope: Any = None) -> dict[str, list[dict[str, Any]]]:
    """The endpoints of a new token's catalogue, by type of service."""
    response = await c.authenticate(password_auth(name, scope=scope or project_scope("demo")))
    found = response.json()["token"]["catalog"]
    shown = await c.ok("GET", "/v3/auth/catalog", response.headers["x-subject-token"])
    assert shown["catalog"] == found
    return {service["type"]: service["endpoints"] for service in found}


def test_own_services_are_shown_and_cannot_be_changed(sqlite_url: str, tmp_path: Path) -> None:
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
                for method in ("GET", "DELETE"):
                    assert (await c.call(method, f"/v3/{path}", admin)).status == 404
            for path, patch in (
                (f"services/{service_id}", {"service": {"enabled": False}}),
                (f"endpoints/{endpoint['id']}", {"endpoint": {"url": "http://x"}}),
                ("regions/RegionOne", {"region": {"description": "d"}}),
            ):
                for method, body in (("PATCH", patch), ("DELETE", None)):
                    response = await c.call(method, f"/v3/{path}", admin, body)
                    assert response.status == 403
                    assert "come from its configuration" in response.json()["error"]["message"]
            body = {"service": {"type": "t"}}
            assert (await c.call("POST", "/v3/services", await c.login("demo"), body)).status == 403

    run(scenario())


def test_registered_service_is_in_every_catalogue(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            admin = await c.login("admin")
            service = await make(c, admin, "service", type="orchestration", name="heat", description="Stacks.", a="b")
            assert service == {
                "id": service["id"],
                "type": "orchestration",
                "name": "heat",
                "description": "Stacks.",
                "enabled": True,
                "a": "b",
                "links": {"self": f"http://cloud.test:1234/identity/v3/services/{service['id']}"},
            }
            assert (await catalog(c))["orchestration"] == []
            values = {"service_id": service["id"], "interface": "public", "region_id": "RegionOne"}
            endpoint = await make(c, admin, "endpoint", url="http://heat:8004/v1/$(project_id)s", **values)
            demo, demo_user = await c.ident("project", "demo"), await c.ident("user", "demo")
            assert (await catalog(c))["orchestration"] == [
                {
                    "id": endpoint["id"],
                    "interface": "public",
                    "region": "RegionOne",
                    "region_id": "RegionOne",
                    "url": f"http://heat:8004/v1/{demo}",
                }
            ]
            # A token without a project has no such endpoint.
            assert (await catalog(c, "admin", SYSTEM))["orchestration"] == []
            path = f"/v3/endpoints/{endpoint['id']}"
            for url, shown in (
                ("http://heat/%(tenant_id)s/%(user_id)s", f"http://heat/{demo}/{demo_user}"),
                ("http://heat/100%", "http://heat/100%"),
            ):
                await c.ok("PATCH", path, admin, {"endpoint": {"url": url}})
                assert [entry["url"] for entry in (await catalog(c))["orchestration"]] == [shown]
            await c.ok("PATCH", path, admin, {"endpoint": {"enabled": False}})
            assert (await catalog(c))["orchestration"] == []
            assert (await c.ok("GET", path, admin))["endpoint"]["enabled"] is False
            patch = {"service": {"enabled": False, "name": None}}
            assert (await c.ok("PATCH", f"/v3/services/{service['id']}", admin, patch))["service"]["name"] == ""
            assert "orchestration" not in await catalog(c)
            assert (await c.ok("GET", "/v3/services?type=orchestration", admin))["services"][0]["enabled"] is False
            # The endpoints end with the service.
            await c.ok("DELETE", f"/v3/services/{service['id']}", admin)
            assert (await c.call("GET", path, admin)).status == 404

    run(scenario())


def test_own_service_gets_endpoints_in_further_regions(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            admin = await c.login("admin")
            compute = (await c.ok("GET", "/v3/services?type=compute", admin))["services"][0]["id"]
            values = {"service_id": compute, "interface": "public", "url": "http://west/compute"}
            # The former name of the attribute, which creates the region.
            endpoint = await make(c, admin, "endpoint", region="West", **values)
            assert (endpoint["region"], endpoint["region_id"]) == ("West", "West")
            assert (await c.ok("GET", "/v3/regions/West", admin))["region"]["description"] == ""
            found = (await catalog(c))["compute"]
            assert [(entry["region"], entry["url"]) for entry in found if entry["interface"] == "public"] == [
                ("RegionOne", "http://cloud.test:1234/compute/v2.1"),
                ("West", "http://west/compute"),
            ]
            for query in (f"service_id={compute}&region_id=West", "region=West", "region_id=West&interface=public"):
                listed = (await c.ok("GET", f"/v3/endpoints?{query}", admin))["endpoints"]
                assert listed == [endpoint], query
            await c.ok("DELETE", f"/v3/endpoints/{endpoint['id']}", admin)
            assert len((await catalog(c))["compute"]) == 3

    run(scenario())


BAD: list[tuple[dict[str, Any], int]] = [
    ({"service_id": "none"}, 404),
    ({"region_id": "none"}, 404),
    ({"interface": "outside"}, 400),
    ({"url": "heat"}, 400),
    ({"url": "http://heat/%(password)s"}, 400),
    ({"url": None}, 400),
]


@pytest.mark.parametrize("wrong, status", BAD, ids=lambda value: str(value)[:40])
def test_invalid_endpoints_are_refused(sqlite_url: str, tmp_path: Path, wrong: dict[str, Any], status: int) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url, tmp_path) as c:
            admin = await c.login("admin")
            service = await make(c, admin, "service", type="t")
            right = {"service_id": service["id"], "interface": "admin", "url": "http://heat"}
            endpoint = await make(c, admin, "endpoint", **right)
            assert endpoint["region_id"] is None
            for method, path in (("POST", "/v3/endpoints"), ("PATCH", f"/v3/endpoints/{endpoint['id']}")):
                response = await c.call(method, path, admin, {"endpoint": {**right, **wrong}})
                assert response.status == status, response.body
            assert (await c.ok("GET", f"/v3/endpoints/{endpoint['id']}", admin))["endpoint"] == endpoint

    run(scenario())


def test_regions(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            admin = await c.login("admin")
            west = await make(c, admin, "region", id="West", description="There", parent_region_id="RegionOne")
            assert west == {
                "id": "West",
                "description": "There",
                "parent_region_id": "RegionOne",
                "links": {"self": "http://cloud.test:1234/identity/v3/regions/West"},
            }
            assert len((await make(c, admin, "region"))["id"]) == 32
            body = {"region": {"parent_region_id": "West"}}
            far = (await c.ok("PUT", "/v3/regions/Far", admin, body, status=201))["region"]
            assert (far["id"], far["parent_region_id"]) == ("Far", "West")
            listed = (await c.ok("GET", "/v3/regions?parent_region_id=West", admin))["regions"]
            assert listed == [far]
            for region_id in ("West", "RegionOne"):
                assert (await c.call("POST", "/v3/regions", admin, {"region": {"id": region_id}})).status == 409
            for method, path, wrong, status in (
                ("PUT", "regions/North", {"id": "South"}, 400),
                ("PUT", f"regions/{'x' * 256}", {}, 400),
                ("POST", "regions", {"parent_region_id": "none"}, 404),
                ("PATCH", "regions/West", {"parent_region_id": "Far"}, 400),
                ("PATCH", "regions/West", {"id": "East"}, 400),
            ):
                assert (await c.call(method, f"/v3/{path}", admin, {"region": wrong})).status == status, path
            patch = {"region": {"description": "Here", "parent_region_id": None}}
            changed = (await c.ok("PATCH", "/v3/regions/West", admin, patch))["region"]
            assert (changed["description"], changed["parent_region_id"]) == ("Here", None)
            # Neither with regions below it, nor with endpoints.
            assert (await c.call("DELETE", "/v3/regions/West", admin)).status == 403
            service = await make(c, admin, "service", type="t")
            values = {"service_id": service["id"], "interface": "public", "url": "http://x", "region_id": "Far"}
            endpoint = await make(c, admin, "endpoint", **values)
            assert (await c.call("DELETE", "/v3/regions/Far", admin)).status == 403
            await c.ok("DELETE", f"/v3/endpoints/{endpoint['id']}", admin)
            await c.ok("DELETE", "/v3/regions/Far", admin)
            await c.ok("DELETE", "/v3/regions/West", admin)
            # Every user sees the regions.
            assert (await c.call("GET", "/v3/regions", await c.login("demo"))).status == 200

    run(scenario())
