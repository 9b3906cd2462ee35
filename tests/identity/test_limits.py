"""Unified limits: registered limits, and limits of projects and domains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.identity.support import Cloud, cloud
from tests.identity.test_catalog import make
from tests.identity.test_domains import new_domain
from tests.support import run


async def create(c: Cloud, token: str, noun: str, *many: dict[str, Any]) -> list[dict[str, Any]]:
    made = await c.ok("POST", f"/v3/{noun}s", token, {f"{noun}s": list(many)})
    return list(made[f"{noun}s"])


def test_registered_limits(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            admin = await c.login("admin")
            service = (await make(c, admin, "service", type="t"))["id"]
            cores = {"service_id": service, "resource_name": "cores", "default_limit": 10}
            first, second = await create(
                c, admin, "registered_limit", cores, {**cores, "region_id": "RegionOne", "description": "here"}
            )
            assert first == {
                **cores,
                "id": first["id"],
                "region_id": None,
                "description": None,
                "links": {"self": f"http://cloud.test:1234/identity/v3/registered_limits/{first['id']}"},
            }
            assert (second["region_id"], second["description"]) == ("RegionOne", "here")
            path = f"/v3/registered_limits/{first['id']}"
            demo = await c.login("demo")
            assert (await c.ok("GET", path, demo))["registered_limit"] == first
            for query, expected in (
                ("", [first["id"], second["id"]]),
                ("?region_id=RegionOne", [second["id"]]),
                (f"?service_id={service}&resource_name=cores&limit=1", sorted([first["id"], second["id"]])[:1]),
                ("?resource_name=ram", []),
            ):
                listed = (await c.ok("GET", f"/v3/registered_limits{query}", demo))["registered_limits"]
                assert sorted(entry["id"] for entry in listed) == sorted(expected), query
            # Either all of a request are created or none.
            both = {"registered_limits": [{**cores, "resource_name": "ram"}, cores]}
            refused = await c.call("POST", "/v3/registered_limits", admin, both)
            assert (refused.status, refused.json()["error"]["message"].endswith("with name cores.")) == (409, True)
            for wrong in ({"service_id": "none"}, {"region_id": "none"}, {"default_limit": -2}, {"default_limit": "1"}):
                body = {"registered_limits": [{**cores, "resource_name": "ram", **wrong}]}
                assert (await c.call("POST", "/v3/registered_limits", admin, body)).status == 400, wrong
            assert (await c.call("POST", "/v3/registered_limits", admin, {"registered_limits": []})).status == 400
            patch = {"registered_limit": {"default_limit": -1, "resource_name": "ram", "region_id": None}}
            changed = (await c.ok("PATCH", path, admin, patch))["registered_limit"]
            assert (changed["default_limit"], changed["resource_name"]) == (-1, "ram")
            assert (await c.call("PATCH", path, demo, patch)).status == 403
            # Registered limits of a deleted service stay.
            await c.ok("DELETE", f"/v3/services/{service}", admin)
            for each in (first, second):
                await c.ok("DELETE", f"/v3/registered_limits/{each['id']}", admin)

    run(scenario())


def test_limits_of_projects_and_domains(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            admin, demo = await c.login("admin"), await c.ident("project", "demo")
            service = (await make(c, admin, "service", type="t"))["id"]
            of = {"service_id": service, "resource_name": "cores"}
            (registered,) = await create(c, admin, "registered_limit", {**of, "default_limit": 10})
            far = await new_domain(c, admin)
            first, second, third = await create(
                c,
                admin,
                "limit",
                {**of, "project_id": demo, "resource_limit": 20, "description": "more"},
                {**of, "project_id": far.project_id, "resource_limit": 5},
                {**of, "domain_id": far.id, "resource_limit": 7},
            )
            path = f"/v3/limits/{first['id']}"
            assert first == {
                **of,
                "id": first["id"],
                "project_id": demo,
                "domain_id": None,
                "region_id": None,
                "resource_limit": 20,
                "description": "more",
                "links": {"self": f"http://cloud.test:1234/identity{path}"},
            }
            assert (await c.ok("GET", path, admin))["limit"] == first

            async def listed(token: str, query: str = "") -> list[str]:
                found = (await c.ok("GET", f"/v3/limits{query}", token))["limits"]
                return sorted(entry["id"] for entry in found)

            # Administrators see all, others those of the own project or domain.
            member = await c.login("demo")
            assert await listed(admin) == sorted([first["id"], second["id"], third["id"]])
            assert await listed(admin, f"?domain_id={far.id}") == [third["id"]]
            assert await listed(admin, f"?project_id={demo}&service_id={service}&region_id=") == [first["id"]]
            assert await listed(member) == [first["id"]]
            assert await listed(member, f"?project_id={far.project_id}") == []
            assert await listed(far.manager) == sorted([second["id"], third["id"]])
            assert (await c.call("GET", path, member)).status == 200
            assert (await c.call("GET", f"/v3/limits/{second['id']}", far.manager)).status == 200
            for token, item_id in ((member, second["id"]), (far.manager, first["id"]), (member, "none")):
                assert (await c.call("GET", f"/v3/limits/{item_id}", token)).status == 403
            for wrong, status in (
                ({"project_id": demo}, 409),
                ({"resource_name": "ram", "project_id": demo}, 403),
                ({"region_id": "RegionOne", "project_id": demo}, 403),
                ({"project_id": demo, "domain_id": far.id}, 400),
                ({}, 400),
                ({"project_id": "none"}, 404),
            ):
                body = {"limits": [{**of, "resource_limit": 1, **wrong}]}
                assert (await c.call("POST", "/v3/limits", admin, body)).status == status, wrong
            changed = await c.ok("PATCH", path, admin, {"limit": {"resource_limit": 21, "project_id": demo}})
            assert changed["limit"] == {**first, "resource_limit": 21}
            assert (await c.call("PATCH", path, admin, {"limit": {"project_id": far.project_id}})).status == 400
            # A registered limit with limits keeps its resource.
            one = f"/v3/registered_limits/{registered['id']}"
            assert (await c.call("PATCH", one, admin, {"registered_limit": {"resource_name": "ram"}})).status == 403
            assert (await c.call("DELETE", one, admin)).status == 403
            await c.ok("PATCH", one, admin, {"registered_limit": {"default_limit": 11, "resource_name": "cores"}})
            # Limits end with their project or domain.
            await c.ok("DELETE", path, admin)
            await c.ok("DELETE", f"/v3/projects/{far.project_id}", admin)
            assert await listed(admin) == [third["id"]]
            await c.ok("PATCH", f"/v3/domains/{far.id}", admin, {"domain": {"enabled": False}})
            await c.ok("DELETE", f"/v3/domains/{far.id}", admin)
            assert await listed(admin) == []
            await c.ok("DELETE", one, admin)

    run(scenario())


def test_limits_follow_the_flat_model(sqlite_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url, tmp_path) as c:
            shown = await c.ok("GET", "/v3/limits/model", await c.login("demo"))
            assert shown["model"]["name"] == "flat"

    run(scenario())
