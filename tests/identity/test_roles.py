"""Roles, what they imply, and who has been given them where."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tests.identity.support import Cloud, cloud, project_scope
from tests.support import run


def test_a_role_from_start_to_end(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            admin = await c.login("admin")
            made = (await c.ok("POST", "/v3/roles", admin, {"role": {"name": "ops"}}))["role"]
            path = f"/v3/roles/{made['id']}"
            assert made == {
                "id": made["id"],
                "name": "ops",
                "domain_id": None,
                "description": None,
                "options": {},
                "links": {"self": f"http://cloud.test:1234/identity{path}"},
            }
            names = [role["name"] for role in (await c.ok("GET", "/v3/roles", admin))["roles"]]
            assert names == ["admin", "manager", "member", "ops", "reader", "service"]
            assert (await c.ok("GET", "/v3/roles?name=ops", admin))["roles"] == [made]
            assert (await c.call("POST", "/v3/roles", admin, {"role": {"name": "ops"}})).status == 409
            assert (
                await c.call("POST", "/v3/roles", admin, {"role": {"name": "x", "domain_id": "default"}})
            ).status == 400
            patched = await c.ok("PATCH", path, admin, {"role": {"description": "d"}})
            assert patched["role"] == {**made, "description": "d"}
            await c.ok("DELETE", path, admin)
            assert (await c.call("GET", path, admin)).status == 404

    run(scenario())


def test_implied_roles(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            admin, demo = await c.login("admin"), await c.login("demo")
            ops = (await c.ok("POST", "/v3/roles", admin, {"role": {"name": "ops"}}))["role"]["id"]
            ids = {name: await c.ident("role", name) for name in ("admin", "manager", "member", "reader", "service")}
            path = f"/v3/roles/{ids['reader']}/implies"
            made = await c.ok("PUT", f"{path}/{ops}", admin, status=201)
            assert made["role_inference"]["prior_role"]["name"] == "reader"
            assert made["role_inference"]["implies"]["name"] == "ops"
            await c.ok("PUT", f"{path}/{ops}", admin, status=201)
            found = await c.tokens.validate(demo)
            assert found is not None
            assert found.roles == {"member", "reader", "ops"}
            shown = (await c.ok("GET", path, admin))["role_inference"]
            assert [role["name"] for role in shown["implies"]] == ["ops"]
            inferences = (await c.ok("GET", "/v3/role_inferences", admin))["role_inferences"]
            pairs = {(entry["prior_role"]["name"], role["name"]) for entry in inferences for role in entry["implies"]}
            assert pairs == {("admin", "manager"), ("manager", "member"), ("member", "reader"), ("reader", "ops")}
            # A circle does no harm.
            await c.ok("PUT", f"/v3/roles/{ops}/implies/{ids['member']}", admin, status=201)
            assert (await c.tokens.validate(demo)) is not None
            assert (await c.call("PUT", f"{path}/{ids['admin']}", admin)).status == 403
            assert (await c.call("PUT", f"{path}/none", admin)).status == 404
            assert (await c.call("HEAD", f"{path}/{ops}", admin)).status == 204
            assert (await c.ok("GET", f"{path}/{ops}", admin))["role_inference"] == made["role_inference"]
            await c.ok("DELETE", f"{path}/{ops}", admin)
            for method in ("HEAD", "GET", "DELETE"):
                assert (await c.call(method, f"{path}/{ops}", admin)).status == 404

    run(scenario())


def test_grants(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            admin = await c.login("admin")
            user_id, role_id = await c.new_user(admin, "eve"), await c.ident("role", "member")
            project_id = await c.ident("project", "demo")
            for place in (f"projects/{project_id}", "domains/default", "system"):
                path = f"/v3/{place}/users/{user_id}/roles"
                assert (await c.ok("GET", path, admin))["roles"] == []
                assert (await c.call("HEAD", f"{path}/{role_id}", admin)).status == 404
                for _ in range(2):
                    await c.ok("PUT", f"{path}/{role_id}", admin, status=204)
                assert [role["name"] for role in (await c.ok("GET", path, admin))["roles"]] == ["member"]
                for method in ("HEAD", "GET"):
                    assert (await c.call(method, f"{path}/{role_id}", admin)).status == 204
                for bad in (
                    path.replace(user_id, "none") + f"/{role_id}",
                    f"{path}/none",
                    path.replace(project_id, "none").replace("default", "none") + f"/{role_id}",
                ):
                    if bad != f"{path}/{role_id}":
                        assert (await c.call("PUT", bad, admin)).status == 404
                await c.ok("DELETE", f"{path}/{role_id}", admin)
                assert (await c.call("DELETE", f"{path}/{role_id}", admin)).status == 404
            demo = await c.login("demo-manager")
            path = f"/v3/projects/{project_id}/users/{user_id}/roles/{role_id}"
            for method in ("PUT", "DELETE", "HEAD", "GET"):
                assert (await c.call(method, path, demo)).status == 403

    run(scenario())


def test_projects_inherit_roles_from_their_domain(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            admin = await c.login("admin")
            domain = (await c.ok("POST", "/v3/domains", admin, {"domain": {"name": "far"}}))["domain"]["id"]
            inside, outside = [
                (await c.ok("POST", "/v3/projects", admin, {"project": {"name": "p", "domain_id": where}}))["project"]
                for where in (domain, "default")
            ]
            user_id, role_id = await c.new_user(admin, "eve"), await c.ident("role", "member")
            path = f"/v3/OS-INHERIT/domains/{domain}/users/{user_id}/roles"
            one = f"{path}/{role_id}/inherited_to_projects"
            assert (await c.call("HEAD", one, admin)).status == 404
            await c.ok("PUT", one, admin, status=204)
            assert (await c.call("HEAD", one, admin)).status == 204
            listed = await c.ok("GET", f"{path}/inherited_to_projects", admin)
            assert [role["name"] for role in listed["roles"]] == ["member"]
            scoped = await _scoped(c, user_id, inside["id"])
            assert scoped is not None
            token, body = scoped
            assert {role["name"] for role in body["roles"]} == {"member", "reader"}
            assert await _scoped(c, user_id, outside["id"]) is None
            # On the domain itself it is not held.
            assert (await c.call("HEAD", f"/v3/domains/{domain}/users/{user_id}/roles/{role_id}", admin)).status == 404
            await c.ok("DELETE", one, admin, status=204)
            assert (await c.call("GET", "/v3/auth/catalog", token)).status == 401
            assert await _scoped(c, user_id, inside["id"]) is None
            await c.ok("PATCH", f"/v3/domains/{domain}", admin, {"domain": {"enabled": False}})
            await c.ok("DELETE", f"/v3/domains/{domain}", admin, status=204)
            left = "SELECT count(*) FROM role_assignments WHERE target_id = $1"
            assert await c.services.db.fetch_value(left, domain) == 0

    run(scenario())


async def _scoped(c: Cloud, user_id: str, project_id: str) -> tuple[str, dict[str, Any]] | None:
    password = {"user": {"id": user_id, "password": "secret of eve"}}
    auth = {
        "identity": {"methods": ["password"], "password": password},
        "scope": {"project": {"id": project_id}},
    }
    answer = await c.call("POST", "/v3/auth/tokens", None, {"auth": auth})
    if answer.status == 401:
        return None
    return answer.headers["x-subject-token"], answer.json()["token"]


def test_a_role_on_a_project_goes_with_it_even_when_given_at_that_moment(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            admin = await c.login("admin")
            role_id = await c.ident("role", "member")
            people = [await c.new_user(admin, f"u{n}") for n in range(6)]
            for turn in range(5):
                body = {"project": {"name": f"brief{turn}"}}
                path = f"/v3/projects/{(await c.ok('POST', '/v3/projects', admin, body))['project']['id']}"
                answers = await asyncio.gather(
                    *(c.call("PUT", f"{path}/users/{user}/roles/{role_id}", admin) for user in people[:3]),
                    c.call("DELETE", path, admin),
                    *(c.call("PUT", f"{path}/users/{user}/roles/{role_id}", admin) for user in people[3:]),
                )
                assert {answer.status for answer in answers} <= {204, 404}
            left = await c.services.db.fetch_value("SELECT count(*) FROM role_assignments")
            assert left == 9

    run(scenario())


async def _assignments(c: Cloud, token: str, query: str) -> set[tuple[str, str, str]]:
    listed = (await c.ok("GET", f"/v3/role_assignments?include_names{query}", token))["role_assignments"]
    return {(entry["user"]["name"], entry["role"]["name"], _where(entry["scope"])) for entry in listed}


def _where(scope: dict[str, Any]) -> str:
    inherited = scope.pop("OS-INHERIT:inherited_to", "")
    ((kind, place),) = scope.items()
    return "system" if kind == "system" else f"{inherited} {place['name']}".strip()


def test_role_assignments(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            admin = await c.login("admin")
            project_id, user_id = await c.ident("project", "demo"), await c.ident("user", "demo-admin")
            reader = await c.ident("role", "reader")
            demo = {
                ("demo", "member", "demo"),
                ("demo-admin", "admin", "demo"),
                ("demo-manager", "manager", "demo"),
                ("demo-reader", "reader", "demo"),
            }
            everywhere = {("kilonova", "admin", "projects Default")}
            assert await _assignments(c, admin, f"&scope.project.id={project_id}") == demo
            assert await _assignments(c, admin, "") == demo | {
                ("admin", "admin", "admin"),
                ("admin", "admin", "system"),
                ("kilonova", "admin", "service"),
                ("kilonova", "service", "service"),
                *everywhere,
            }
            assert await _assignments(c, admin, "&scope.system=all") == {("admin", "admin", "system")}
            assert await _assignments(c, admin, "&scope.domain.id=default") == everywhere
            assert await _assignments(c, admin, "&scope.OS-INHERIT:inherited_to=projects") == everywhere
            effective = await _assignments(c, admin, f"&scope.project.id={project_id}&effective")
            assert {entry[1] for entry in effective if entry[0] == "kilonova"} == {
                "admin",
                "manager",
                "member",
                "reader",
            }
            assert await _assignments(c, admin, f"&role.id={reader}") == {("demo-reader", "reader", "demo")}
            assert await _assignments(c, admin, "&group.id=x") == set()
            everyone = {("demo-admin", role, "demo") for role in ("admin", "manager", "member", "reader")}
            assert await _assignments(c, admin, f"&user.id={user_id}&effective") == everyone
            assert await _assignments(c, admin, f"&user.id={user_id}&effective&role.id={reader}") == {
                ("demo-admin", "reader", "demo")
            }
            assert await _assignments(c, admin, f"&user.id={user_id}&effective=false") == {
                ("demo-admin", "admin", "demo")
            }
            wrong = "scope.OS-INHERIT:inherited_to=domains"
            for query in (f"scope.project.id={project_id}&scope.system=all", "scope.what=1", wrong):
                assert (await c.call("GET", f"/v3/role_assignments?{query}", admin)).status == 400

    run(scenario())


def test_role_assignments_without_names(sqlite_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url, tmp_path) as c:
            admin = await c.login("admin")
            user_id, project_id = await c.ident("user", "demo"), await c.ident("project", "demo")
            role_id = await c.ident("role", "member")
            (entry,) = (await c.ok("GET", f"/v3/role_assignments?user.id={user_id}", admin))["role_assignments"]
            assert entry == {
                "role": {"id": role_id},
                "user": {"id": user_id},
                "scope": {"project": {"id": project_id}},
                "links": {
                    "assignment": "http://cloud.test:1234/identity/v3/projects/"
                    f"{project_id}/users/{user_id}/roles/{role_id}"
                },
            }

    run(scenario())


def test_groups_are_none_and_cannot_be_made(sqlite_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url, tmp_path) as c:
            admin = await c.login("admin")
            assert (await c.ok("GET", "/v3/groups?name=x", admin))["groups"] == []
            user_id, project_id = await c.ident("user", "demo"), await c.ident("project", "demo")
            assert (await c.ok("GET", f"/v3/users/{user_id}/groups", admin))["groups"] == []
            answer = await c.call("POST", "/v3/groups", admin, {"group": {"name": "g"}})
            assert answer.status == 501
            assert "Groups are not supported" in answer.json()["error"]["message"]
            assert (await c.call("GET", "/v3/groups/g", admin)).status == 404
            assert (await c.call("PUT", f"/v3/projects/{project_id}/groups/g/roles/r", admin)).status == 404

    run(scenario())


def test_the_catalogue_is_read_only(sqlite_url: str, tmp_path: Path) -> None:
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
                answer = await c.call(method, f"/v3/{path}", admin, {})
                assert answer.status == 501
                assert "configuration" in answer.json()["error"]["message"]
            assert (await c.call("POST", "/v3/services", await c.login("demo"), {})).status == 403

    run(scenario())


def test_a_new_role_counts_at_the_next_request(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            admin = await c.login("admin")
            user_id = await c.new_user(admin, "eve", "demo")
            eve = await c.login("eve", project_scope("demo"), "secret of eve")
            assert (await c.call("GET", "/v3/users", eve)).status == 403
            await c.grant(admin, user_id, "demo", "admin")
            assert (await c.call("GET", "/v3/users", eve)).status == 200

    run(scenario())
