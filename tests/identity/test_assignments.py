"""Role assignments."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tests.identity.support import Cloud, cloud, project_scope
from tests.support import run


def test_roles_are_assigned_and_unassigned(database_url: str, tmp_path: Path) -> None:
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
            # The inherited role does not apply to the domain itself.
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
    response = await c.call("POST", "/v3/auth/tokens", None, {"auth": auth})
    if response.status == 401:
        return None
    return response.headers["x-subject-token"], response.json()["token"]


def test_deleted_project_keeps_no_concurrently_assigned_role(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            admin = await c.login("admin")
            role_id = await c.ident("role", "member")
            people = [await c.new_user(admin, f"u{n}") for n in range(6)]
            for turn in range(5):
                body = {"project": {"name": f"brief{turn}"}}
                path = f"/v3/projects/{(await c.ok('POST', '/v3/projects', admin, body))['project']['id']}"
                responses = await asyncio.gather(
                    *(c.call("PUT", f"{path}/users/{user}/roles/{role_id}", admin) for user in people[:3]),
                    c.call("DELETE", path, admin),
                    *(c.call("PUT", f"{path}/users/{user}/roles/{role_id}", admin) for user in people[3:]),
                )
                assert {response.status for response in responses} <= {204, 404}
            left = await c.services.db.fetch_value("SELECT count(*) FROM role_assignments")
            assert left == 9

    run(scenario())


async def _assignments(c: Cloud, token: str, query: str) -> set[tuple[str, str, str]]:
    listed = (await c.ok("GET", f"/v3/role_assignments?include_names{query}", token))["role_assignments"]
    return {(entry["user"]["name"], entry["role"]["name"], _scope_name(entry["scope"])) for entry in listed}


def _scope_name(scope: dict[str, Any]) -> str:
    inherited = scope.pop("OS-INHERIT:inherited_to", "")
    ((kind, place),) = scope.items()
    return "system" if kind == "system" else f"{inherited} {place['name']}".strip()


def test_role_assignments_are_listed_and_filtered(database_url: str, tmp_path: Path) -> None:
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


def test_new_role_is_effective_at_next_request(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            admin = await c.login("admin")
            user_id = await c.new_user(admin, "eve", "demo")
            eve = await c.login("eve", project_scope("demo"), "secret of eve")
            assert (await c.call("GET", "/v3/users", eve)).status == 403
            await c.grant(admin, user_id, "demo", "admin")
            assert (await c.call("GET", "/v3/users", eve)).status == 200

    run(scenario())
