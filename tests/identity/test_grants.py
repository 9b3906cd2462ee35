"""Assignments of roles to users: on projects, domains and the system, and for what projects inherit."""

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


def test_projects_inherit_roles_from_the_projects_above(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            admin = await c.login("admin")
            parent: str | None = None
            tree: list[str] = []
            for name in ("top", "middle", "leaf"):
                body = {"project": {"name": name, "parent_id": parent}}
                parent = (await c.ok("POST", "/v3/projects", admin, body))["project"]["id"]
                tree.append(str(parent))
            user_id, role_id = await c.new_user(admin, "eve"), await c.ident("role", "member")
            path = f"/v3/OS-INHERIT/projects/{tree[0]}/users/{user_id}/roles"
            one = f"{path}/{role_id}/inherited_to_projects"
            await c.ok("PUT", one, admin, status=204)
            assert (await c.call("GET", one, admin)).status == 204
            listed = await c.ok("GET", f"{path}/inherited_to_projects", admin)
            assert [role["name"] for role in listed["roles"]] == ["member"]
            # The project itself does not inherit the role.
            assert await _scoped(c, user_id, tree[0]) is None
            tokens = [await _scoped(c, user_id, project_id) for project_id in tree[1:]]
            assert [{role["name"] for role in found[1]["roles"]} for found in tokens if found] == [
                {"member", "reader"}
            ] * 2
            listed = await c.ok("GET", f"/v3/users/{user_id}/projects", admin)
            assert [project["name"] for project in listed["projects"]] == ["leaf", "middle"]
            await c.ok("DELETE", one, admin)
            assert [await c.works(found[0]) for found in tokens if found] == [False, False]
            # The assignment ends with the project.
            await c.ok("PUT", one, admin, status=204)
            for project_id in reversed(tree):
                await c.ok("DELETE", f"/v3/projects/{project_id}", admin)
            left = "SELECT count(*) FROM role_assignments WHERE user_id = $1"
            assert await c.services.db.fetch_value(left, user_id) == 0

    run(scenario())


def test_roles_of_a_domain_apply_by_what_they_imply(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            admin = await c.login("admin")
            far = (await c.ok("POST", "/v3/domains", admin, {"domain": {"name": "far"}}))["domain"]["id"]
            body = {"role": {"name": "helper", "domain_id": far}}
            role_id = (await c.ok("POST", "/v3/roles", admin, body))["role"]["id"]
            user_id = await c.new_user(admin, "eve")
            body = {"project": {"name": "p", "domain_id": far}}
            inside = (await c.ok("POST", "/v3/projects", admin, body))["project"]["id"]
            outside = await c.ident("project", "demo")
            for place in (f"projects/{outside}", "domains/default", "system"):
                refused = await c.call("PUT", f"/v3/{place}/users/{user_id}/roles/{role_id}", admin)
                assert refused.status == 403, place
            await c.ok("PUT", f"/v3/projects/{inside}/users/{user_id}/roles/{role_id}", admin, status=204)
            # A token has no roles of domains.
            assert await _scoped(c, user_id, inside) is None
            listed = f"/v3/role_assignments?user.id={user_id}"
            assert len((await c.ok("GET", listed, admin))["role_assignments"]) == 1
            assert (await c.ok("GET", f"{listed}&effective", admin))["role_assignments"] == []
            backwards = f"/v3/roles/{await c.ident('role', 'reader')}/implies/{role_id}"
            assert (await c.call("PUT", backwards, admin)).status == 403
            await c.ok("PUT", f"/v3/roles/{role_id}/implies/{await c.ident('role', 'reader')}", admin, status=201)
            scoped = await _scoped(c, user_id, inside)
            assert scoped is not None
            assert [role["name"] for role in scoped[1]["roles"]] == ["reader"]

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
