"""Groups: lifecycle, members, and the roles that members have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.identity.support import SYSTEM, Cloud, cloud, project_scope
from tests.support import run


async def new_group(c: Cloud, admin: str, name: str, *members: str, **values: Any) -> str:
    """The id of a new group with these users."""
    made = await c.ok("POST", "/v3/groups", admin, {"group": {"name": name, **values}})
    for user_id in members:
        await c.ok("PUT", f"/v3/groups/{made['group']['id']}/users/{user_id}", admin, status=204)
    return str(made["group"]["id"])


def test_group_is_created_updated_and_deleted(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            admin = await c.login("admin")
            created = (await c.ok("POST", "/v3/groups", admin, {"group": {"name": "ops", "floor": 3}}))["group"]
            path = f"/v3/groups/{created['id']}"
            assert created == {
                "id": created["id"],
                "name": "ops",
                "domain_id": "default",
                "description": "",
                "floor": 3,
                "links": {"self": f"http://cloud.test:1234/identity{path}"},
            }
            assert (await c.ok("GET", path, admin))["group"] == created
            assert (await c.call("POST", "/v3/groups", admin, {"group": {"name": "ops"}})).status == 409
            far = (await c.ok("POST", "/v3/domains", admin, {"domain": {"name": "far"}}))["domain"]["id"]
            await new_group(c, admin, "ops", domain_id=far)
            patch = {"group": {"name": "dev", "description": "Developers.", "floor": None}}
            changed = (await c.ok("PATCH", path, admin, patch))["group"]
            assert (changed["name"], changed["description"]) == ("dev", "Developers.")
            assert "floor" not in changed
            assert (await c.call("PATCH", path, admin, {"group": {"domain_id": far}})).status == 400
            for query, names in (
                ("", ["dev", "ops"]),
                ("?name=dev", ["dev"]),
                ("?name__contains=p", ["ops"]),
                (f"?domain_id={far}", ["ops"]),
            ):
                listed = (await c.ok("GET", f"/v3/groups{query}", admin))["groups"]
                assert [group["name"] for group in listed] == names, query
            await c.ok("DELETE", path, admin)
            for method in ("GET", "DELETE"):
                assert (await c.call(method, path, admin)).status == 404
            assert (
                await c.call("POST", "/v3/groups", admin, {"group": {"name": "n", "domain_id": "no"}})
            ).status == 404

    run(scenario())


def test_members_of_a_group(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            admin = await c.login("admin")
            eve, bob = await c.new_user(admin, "eve"), await c.new_user(admin, "bob")
            group_id = await new_group(c, admin, "ops", bob)
            member = f"/v3/groups/{group_id}/users/{eve}"
            assert (await c.call("HEAD", member, admin)).status == 404
            for _ in range(2):
                await c.ok("PUT", member, admin, status=204)
            for method in ("HEAD", "GET"):
                assert (await c.call(method, member, admin)).status == 204
            listed = await c.ok("GET", f"/v3/groups/{group_id}/users", admin)
            assert [user["name"] for user in listed["users"]] == ["bob", "eve"]
            listed = await c.ok("GET", f"/v3/groups/{group_id}/users?name=eve", admin)
            assert [user["id"] for user in listed["users"]] == [eve]
            groups = await c.ok("GET", f"/v3/users/{eve}/groups", admin)
            assert [group["id"] for group in groups["groups"]] == [group_id]
            await c.ok("DELETE", member, admin)
            assert (await c.call("DELETE", member, admin)).status == 404
            for path in (f"/v3/groups/none/users/{eve}", f"/v3/groups/{group_id}/users/none"):
                for method in ("PUT", "GET", "DELETE"):
                    assert (await c.call(method, path, admin)).status == 404
            # The membership ends with the user.
            await c.ok("DELETE", f"/v3/users/{bob}", admin)
            assert (await c.ok("GET", f"/v3/groups/{group_id}/users", admin))["users"] == []

    run(scenario())


def test_users_see_their_own_groups_only(sqlite_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url, tmp_path) as c:
            admin, demo = await c.login("admin"), await c.login("demo")
            demo_id, admin_id = await c.ident("user", "demo"), await c.ident("user", "admin")
            group_id = await new_group(c, admin, "ops", demo_id)
            assert len((await c.ok("GET", f"/v3/users/{demo_id}/groups", demo))["groups"]) == 1
            for path in (f"users/{admin_id}/groups", "groups", f"groups/{group_id}", f"groups/{group_id}/users"):
                assert (await c.call("GET", f"/v3/{path}", demo)).status == 403, path

    run(scenario())


async def _roles(c: Cloud, name: str, scope: Any) -> tuple[str, set[str]]:
    """A token of the user for the scope, and its roles; no token if the user has none."""
    user = {"name": name, "domain": {"id": "default"}, "password": f"secret of {name}"}
    auth = {"identity": {"methods": ["password"], "password": {"user": user}}, "scope": scope}
    response = await c.authenticate({"auth": auth})
    if response.status == 401:
        return "", set()
    return response.headers["x-subject-token"], {role["name"] for role in response.json()["token"].get("roles", ())}


SCOPES = [
    ("projects/{project}", "", project_scope("demo")),
    ("domains/default", "", {"domain": {"id": "default"}}),
    ("system", "", SYSTEM),
    ("OS-INHERIT/domains/default", "/inherited_to_projects", project_scope("demo")),
]


@pytest.mark.parametrize("place, ending, scope", SCOPES, ids=lambda value: str(value)[:20])
def test_members_have_the_roles_of_the_group(
    database_url: str, tmp_path: Path, place: str, ending: str, scope: Any
) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            admin = await c.login("admin")
            eve, role_id = await c.new_user(admin, "eve"), await c.ident("role", "member")
            group_id = await new_group(c, admin, "ops", eve)
            where = place.format(project=await c.ident("project", "demo"))
            path = f"/v3/{where}/groups/{group_id}/roles"
            one = f"{path}/{role_id}{ending}"
            assert (await c.call("HEAD", one, admin)).status == 404
            assert await _roles(c, "eve", scope) == ("", set())
            for _ in range(2):
                await c.ok("PUT", one, admin, status=204)
            for method in ("HEAD", "GET"):
                assert (await c.call(method, one, admin)).status == 204
            listed = await c.ok("GET", path + ending, admin)
            assert [role["name"] for role in listed["roles"]] == ["member"]
            token, roles = await _roles(c, "eve", scope)
            assert roles == {"member", "reader"}
            # With the assignment, the membership and the group, the token loses its only role.
            await c.ok("DELETE", one, admin)
            assert not await c.works(token)
            await c.ok("PUT", one, admin, status=204)
            token, _ = await _roles(c, "eve", scope)
            await c.ok("DELETE", f"/v3/groups/{group_id}/users/{eve}", admin)
            assert not await c.works(token)
            await c.ok("PUT", f"/v3/groups/{group_id}/users/{eve}", admin, status=204)
            token, _ = await _roles(c, "eve", scope)
            await c.ok("DELETE", f"/v3/groups/{group_id}", admin)
            assert not await c.works(token)
            assert await c.services.db.fetch_value("SELECT count(*) FROM group_role_assignments") == 0
            assert (await c.call("PUT", one, admin)).status == 404

    run(scenario())


def test_own_scopes_include_those_of_groups(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            admin = await c.login("admin")
            eve, role_id = await c.new_user(admin, "eve"), await c.ident("role", "member")
            demo = await c.ident("project", "demo")
            group_id = await new_group(c, admin, "ops", eve)
            for place in (f"projects/{demo}", "domains/default", "system"):
                await c.ok("PUT", f"/v3/{place}/groups/{group_id}/roles/{role_id}", admin, status=204)
            token, _ = await _roles(c, "eve", {"unscoped": {}})
            assert [p["name"] for p in (await c.ok("GET", "/v3/auth/projects", token))["projects"]] == ["demo"]
            assert [d["name"] for d in (await c.ok("GET", "/v3/auth/domains", token))["domains"]] == ["Default"]
            assert (await c.ok("GET", "/v3/auth/system", token))["system"] == [{"all": True}]
            listed = await c.ok("GET", f"/v3/users/{eve}/projects", admin)
            assert [project["name"] for project in listed["projects"]] == ["demo"]
            inherited = f"/v3/OS-INHERIT/domains/default/groups/{group_id}/roles/{role_id}/inherited_to_projects"
            await c.ok("PUT", inherited, admin, status=204)
            own = {project["name"] for project in (await c.ok("GET", "/v3/auth/projects", token))["projects"]}
            assert own == {"admin", "demo", "service"}
            # A project where the user has several roles is listed once.
            listed = await c.ok("GET", f"/v3/users/{eve}/projects?enabled", admin)
            assert [project["name"] for project in listed["projects"]] == ["admin", "demo", "service"]

    run(scenario())


def test_deleted_role_and_project_leave_no_assignments_of_groups(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            admin = await c.login("admin")
            group_id, member = await new_group(c, admin, "ops"), await c.ident("role", "member")
            role = (await c.ok("POST", "/v3/roles", admin, {"role": {"name": "brief"}}))["role"]["id"]
            project = (await c.ok("POST", "/v3/projects", admin, {"project": {"name": "p"}}))["project"]["id"]
            await c.ok("PUT", f"/v3/system/groups/{group_id}/roles/{role}", admin, status=204)
            await c.ok("PUT", f"/v3/projects/{project}/groups/{group_id}/roles/{member}", admin, status=204)
            await c.ok("DELETE", f"/v3/roles/{role}", admin)
            await c.ok("DELETE", f"/v3/projects/{project}", admin)
            assert await c.services.db.fetch_value("SELECT count(*) FROM group_role_assignments") == 0

    run(scenario())
