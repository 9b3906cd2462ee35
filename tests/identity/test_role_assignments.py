"""The list of role assignments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.identity.support import Cloud, cloud
from tests.identity.test_groups import new_group
from tests.support import run


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


def test_assignments_of_groups_and_subtrees_are_listed(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            admin, demo = await c.login("admin"), await c.ident("project", "demo")
            eve, bob = await c.new_user(admin, "eve"), await c.new_user(admin, "bob")
            group_id, member = await new_group(c, admin, "ops", eve, bob), await c.ident("role", "member")
            body = {"project": {"name": "child", "parent_id": demo}}
            child = (await c.ok("POST", "/v3/projects", admin, body))["project"]["id"]
            await c.ok("PUT", f"/v3/projects/{child}/groups/{group_id}/roles/{member}", admin, status=204)
            inherited = f"OS-INHERIT/projects/{demo}/groups/{group_id}/roles/{member}/inherited_to_projects"
            await c.ok("PUT", f"/v3/{inherited}", admin, status=204)

            async def listed(query: str) -> list[dict[str, Any]]:
                found = await c.ok("GET", f"/v3/role_assignments?{query}", admin)
                return list(found["role_assignments"])

            base = "http://cloud.test:1234/identity/v3"
            direct = {
                "role": {"id": member},
                "group": {"id": group_id},
                "scope": {"project": {"id": child}},
                "links": {"assignment": f"{base}/projects/{child}/groups/{group_id}/roles/{member}"},
            }
            by_tree = {
                **direct,
                "scope": {"project": {"id": demo}, "OS-INHERIT:inherited_to": "projects"},
                "links": {"assignment": f"{base}/{inherited}"},
            }
            assert sorted(await listed(f"group.id={group_id}"), key=str) == sorted([direct, by_tree], key=str)
            assert await listed(f"group.id={group_id}&scope.project.id={child}") == [direct]
            assert await listed(f"group.id={group_id}&scope.OS-INHERIT:inherited_to=projects") == [by_tree]
            assert len(await listed(f"group.id={group_id}&scope.project.id={demo}&include_subtree=true")) == 2
            named = (await listed(f"group.id={group_id}&scope.project.id={child}&include_names"))[0]
            assert named["group"] == {
                "id": group_id,
                "name": "ops",
                "domain": {"id": "default", "name": "Default"},
            }
            # Effective assignments are those of the members, with the link to the membership.
            reader = await c.ident("role", "reader")
            effective = await listed(f"user.id={eve}&effective&scope.OS-INHERIT:inherited_to=projects")
            assert {entry["role"]["id"] for entry in effective} == {member, reader}
            assert all(entry["user"] == {"id": eve} and "group" not in entry for entry in effective)
            assert all(entry["scope"] == {"project": {"id": child}} for entry in effective)
            assert all(entry["links"]["assignment"] == f"{base}/{inherited}" for entry in effective)
            assert all(entry["links"]["membership"] == f"{base}/groups/{group_id}/users/{eve}" for entry in effective)
            members = await listed(f"scope.project.id={child}&effective&role.id={member}")
            assert {entry["user"]["id"] for entry in members} >= {eve, bob}
            for query in (
                f"group.id={group_id}&user.id={eve}",
                f"group.id={group_id}&effective",
                "scope.domain.id=default&scope.OS-INHERIT:inherited_to=projects&effective",
                "include_subtree=true",
            ):
                assert (await c.call("GET", f"/v3/role_assignments?{query}", admin)).status == 400, query

    run(scenario())
