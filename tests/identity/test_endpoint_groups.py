"""Endpoint groups, and endpoints that are added to projects."""

from __future__ import annotations

from pathlib import Path

from tests.identity.support import cloud
from tests.identity.test_catalog import catalog, make
from tests.support import run

PATH = "/v3/OS-EP-FILTER"


def test_endpoint_groups(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            admin = await c.login("admin")
            service = (await make(c, admin, "service", type="t"))["id"]
            values = {"service_id": service, "url": "http://x"}
            public = await make(c, admin, "endpoint", interface="public", **values)
            await make(c, admin, "endpoint", interface="internal", **values)
            body = {"endpoint_group": {"name": "g", "filters": {"service_id": service, "interface": "public"}}}
            created = (await c.ok("POST", f"{PATH}/endpoint_groups", admin, body))["endpoint_group"]
            one = f"{PATH}/endpoint_groups/{created['id']}"
            assert created == {
                "id": created["id"],
                "name": "g",
                "description": None,
                "filters": {"service_id": service, "interface": "public"},
                "links": {"self": f"http://cloud.test:1234/identity{one}"},
            }
            assert (await c.ok("GET", f"{PATH}/endpoint_groups?name=g", admin))["endpoint_groups"] == [created]
            assert (await c.ok("GET", one, admin))["endpoint_group"] == created
            assert (await c.call("HEAD", one, admin)).status == 200
            assert (await c.ok("GET", f"{one}/endpoints", admin))["endpoints"] == [public]
            for wrong in ({"interface": "outside"}, {"url": "http://x"}):
                bad = {"endpoint_group": {"name": "g", "filters": wrong}}
                assert (await c.call("POST", f"{PATH}/endpoint_groups", admin, bad)).status == 400
            patch = {"endpoint_group": {"name": "h", "filters": {"interface": "internal"}}}
            assert (await c.ok("PATCH", one, admin, patch))["endpoint_group"]["name"] == "h"
            # One of each own service, and the registered one.
            own = len((await c.ok("GET", "/v3/services", admin))["services"]) - 1
            assert len((await c.ok("GET", f"{one}/endpoints", admin))["endpoints"]) == own + 1
            await c.ok("DELETE", one, admin)
            assert (await c.call("HEAD", one, admin)).status == 404

    run(scenario())


def test_catalogue_has_only_what_is_added_to_the_project(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            admin, demo = await c.login("admin"), await c.ident("project", "demo")
            everything = await catalog(c)
            body = {"endpoint_group": {"name": "g", "filters": {"interface": "public"}}}
            group = (await c.ok("POST", f"{PATH}/endpoint_groups", admin, body))["endpoint_group"]
            by_group = f"{PATH}/endpoint_groups/{group['id']}/projects"
            internal = next(entry for entry in everything["compute"] if entry["interface"] == "internal")
            single = f"{PATH}/projects/{demo}/endpoints"
            one = f"{single}/{internal['id']}"
            for path in (f"{by_group}/{demo}", one):
                for method in ("GET", "HEAD", "DELETE"):
                    assert (await c.call(method, path, admin)).status == 404
                for _ in range(2):
                    await c.ok("PUT", path, admin, status=204)
            assert (await c.call("GET", one, admin)).status == 204
            assert (await c.ok("GET", f"{by_group}/{demo}", admin))["endpoint_group"] == group
            assert [project["id"] for project in (await c.ok("GET", by_group, admin))["projects"]] == [demo]
            listed = await c.ok("GET", f"{PATH}/endpoints/{internal['id']}/projects", admin)
            assert [project["id"] for project in listed["projects"]] == [demo]
            groups = await c.ok("GET", f"{PATH}/projects/{demo}/endpoint_groups", admin)
            assert groups["endpoint_groups"] == [group]
            found = await catalog(c)
            assert {entry["interface"] for entries in found.values() for entry in entries} == {"public", "internal"}
            assert [entry["interface"] for entry in found["compute"]] == ["public", "internal"]
            assert len((await c.ok("GET", single, admin))["endpoints"]) == len(everything) + 1
            # Other projects have all endpoints as before.
            assert await catalog(c, "admin", {"project": {"name": "admin", "domain": {"id": "default"}}}) == everything
            await c.ok("DELETE", f"{by_group}/{demo}", admin)
            assert await catalog(c) == {"compute": [internal]}
            await c.ok("DELETE", one, admin)
            assert await catalog(c) == everything
            for path in (
                f"{PATH}/projects/none/endpoints/{internal['id']}",
                f"{PATH}/projects/{demo}/endpoints/none",
                f"{PATH}/endpoint_groups/none/projects/{demo}",
            ):
                assert (await c.call("PUT", path, admin)).status == 404

    run(scenario())
