"""Domains: what ends when they are disabled, and what their readers and managers may do."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from kilonova.store.schema import metadata
from tests.identity.support import Cloud, cloud
from tests.identity.test_groups import new_group
from tests.support import run


class Far(NamedTuple):
    """A domain with a user in a project, and a manager of the domain with a token for it."""

    id: str
    project_id: str
    user_id: str
    manager: str


async def login_to(c: Cloud, user_id: str, password: str, scope: Any) -> str:
    """A token of the user; empty if the login is refused."""
    identity = {"methods": ["password"], "password": {"user": {"id": user_id, "password": password}}}
    response = await c.authenticate({"auth": {"identity": identity, "scope": scope}})
    return response.headers["x-subject-token"] if response.status == 201 else ""


async def new_domain(c: Cloud, admin: str, name: str = "far") -> Far:
    async def make(noun: str, **values: Any) -> str:
        return str((await c.ok("POST", f"/v3/{noun}s", admin, {noun: values}))[noun]["id"])

    domain = await make("domain", name=name)
    project = await make("project", name="p", domain_id=domain)
    user = await make("user", name="u", domain_id=domain, password="of u")
    manager = await make("user", name="m", domain_id=domain, password="of m")
    member, manages = await c.ident("role", "member"), await c.ident("role", "manager")
    await c.ok("PUT", f"/v3/projects/{project}/users/{user}/roles/{member}", admin, status=204)
    await c.ok("PUT", f"/v3/domains/{domain}/users/{manager}/roles/{manages}", admin, status=204)
    return Far(domain, project, user, await login_to(c, manager, "of m", {"domain": {"id": domain}}))


def test_disabled_domain_refuses_logins_and_tokens(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            admin = await c.login("admin")
            far = await new_domain(c, admin)
            scope = {"project": {"id": far.project_id}}
            token = await login_to(c, far.user_id, "of u", scope)
            # A user of another domain has a role in a project of this domain.
            eve, member = await c.new_user(admin, "eve"), await c.ident("role", "member")
            await c.ok("PUT", f"/v3/projects/{far.project_id}/users/{eve}/roles/{member}", admin, status=204)
            assert await login_to(c, eve, "secret of eve", scope)
            await c.ok("PATCH", f"/v3/domains/{far.id}", admin, {"domain": {"enabled": False}})
            assert not await c.works(token)
            assert not await c.works(far.manager)
            for user_id, password in ((far.user_id, "of u"), (eve, "secret of eve")):
                assert not await login_to(c, user_id, password, scope)
            assert not await login_to(c, far.user_id, "of u", {"unscoped": {}})
            await c.ok("PATCH", f"/v3/domains/{far.id}", admin, {"domain": {"enabled": True}})
            # The tokens stay revoked.
            assert not await c.works(token)
            assert await login_to(c, far.user_id, "of u", scope)

    run(scenario())


def test_default_domain_cannot_be_disabled(sqlite_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url, tmp_path) as c:
            admin = await c.login("admin")
            refused = await c.call("PATCH", "/v3/domains/default", admin, {"domain": {"enabled": False}})
            assert refused.status == 403
            assert "service user" in refused.json()["error"]["message"]
            await c.ok("PATCH", "/v3/domains/default", admin, {"domain": {"description": "d", "enabled": True}})

    run(scenario())


def test_manager_administers_the_own_domain(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            admin = await c.login("admin")
            far = await new_domain(c, admin)
            token, member = far.manager, await c.ident("role", "member")

            async def make(noun: str, **values: Any) -> str:
                """A new object, by default in the domain of the token."""
                made = (await c.ok("POST", f"/v3/{noun}s", token, {noun: values}))[noun]
                assert made["domain_id"] == far.id
                return str(made["id"])

            project, user, group = (
                await make("project", name="lab"),
                await make("user", name="bob", password="of bob"),
                await make("group", name="ops"),
            )
            child = await make("project", name="child", parent_id=project)
            for noun, item_id in (("project", project), ("user", user), ("group", group)):
                path = f"/v3/{noun}s/{item_id}"
                await c.ok("PATCH", path, token, {noun: {"name": "renamed"}})
                assert (await c.ok("GET", path, token))[noun]["name"] == "renamed"
            await c.ok("PUT", f"/v3/groups/{group}/users/{user}", token, status=204)
            grants = [f"/v3/projects/{project}/users/{user}", f"/v3/domains/{far.id}/groups/{group}"]
            for path in grants:
                await c.ok("PUT", f"{path}/roles/{member}", token, status=204)
                assert len((await c.ok("GET", f"{path}/roles", token))["roles"]) == 1
            assert await login_to(c, user, "of bob", {"project": {"id": project}})
            assert (await c.ok("GET", f"/v3/users/{user}/groups", token))["groups"][0]["id"] == group
            # Lists show the own domain only.
            for noun, names in (
                ("domain", ["far"]),
                ("project", ["child", "p", "renamed"]),
                ("user", ["m", "renamed", "u"]),
                ("group", ["renamed"]),
            ):
                listed = (await c.ok("GET", f"/v3/{noun}s", token))[f"{noun}s"]
                assert [entry["name"] for entry in listed] == names, noun
            listed = (await c.ok("GET", "/v3/role_assignments", token))["role_assignments"]
            assert len(listed) == 5  # two here, two of `new_domain`, and that of the service user
            tree = f"/v3/role_assignments?scope.project.id={project}&include_subtree"
            assert len((await c.ok("GET", tree, token))["role_assignments"]) == 1
            for path in (*(f"{path}/roles/{member}" for path in grants), f"/v3/groups/{group}/users/{user}"):
                await c.ok("DELETE", path, token)
            for path in (f"projects/{child}", f"projects/{project}", f"users/{user}", f"groups/{group}"):
                await c.ok("DELETE", f"/v3/{path}", token)

    run(scenario())


def test_manager_has_no_power_over_other_domains(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            admin = await c.login("admin")
            far, near = await new_domain(c, admin), await new_domain(c, admin, "near")
            own_group = await new_group(c, admin, "g", domain_id=far.id)
            other_group = await new_group(c, admin, "g", domain_id=near.id)
            member, reader = await c.ident("role", "member"), await c.ident("role", "reader")
            requests: list[tuple[str, str, Any]] = [
                ("GET", f"projects/{near.project_id}", None),
                ("GET", f"users/{near.user_id}", None),
                ("GET", f"groups/{other_group}", None),
                ("GET", f"users/{near.user_id}/projects", None),
                ("PATCH", f"users/{near.user_id}", {"user": {"password": "taken"}}),
                ("DELETE", f"projects/{near.project_id}", None),
                ("POST", "users", {"user": {"name": "n", "domain_id": near.id}}),
                ("POST", "groups", {"group": {"name": "n", "domain_id": "missing"}}),
                ("POST", "projects", {"project": {"name": "n", "parent_id": near.project_id}}),
                ("POST", "projects", {"project": {"name": "n", "domain_id": far.id, "parent_id": near.id}}),
                # Neither a foreign user in an own group, nor an own user in a foreign group.
                ("PUT", f"groups/{own_group}/users/{near.user_id}", None),
                ("PUT", f"groups/{other_group}/users/{far.user_id}", None),
                ("PUT", f"projects/{far.project_id}/users/{near.user_id}/roles/{member}", None),
                ("PUT", f"projects/{near.project_id}/users/{far.user_id}/roles/{member}", None),
                ("PUT", f"domains/{near.id}/groups/{own_group}/roles/{member}", None),
                ("PUT", f"system/users/{far.user_id}/roles/{reader}", None),
                # Roles with more power than the own.
                ("PUT", f"projects/{far.project_id}/users/{far.user_id}/roles/{await c.ident('role', 'admin')}", None),
                ("PUT", f"domains/{far.id}/users/{far.user_id}/roles/{await c.ident('role', 'service')}", None),
                ("GET", f"role_assignments?scope.project.id={near.project_id}&include_subtree", None),
                ("PATCH", f"domains/{far.id}", {"domain": {"name": "n"}}),
                ("POST", "domains", {"domain": {"name": "n"}}),
            ]
            for method, path, body in requests:
                answer = await c.call(method, f"/v3/{path}", far.manager, body)
                assert answer.status == 403, (method, path, answer.body)
            query = f"/v3/role_assignments?scope.domain.id={near.id}"
            assert (await c.ok("GET", query, far.manager))["role_assignments"] == []
            assert (await c.ok("GET", f"/v3/users?domain_id={near.id}", far.manager))["users"] == []

    run(scenario())


def test_deleted_domain_leaves_no_references(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            admin = await c.login("admin")
            far, group_id = await new_domain(c, admin), await new_group(c, admin, "outside")
            user_id, role_id = await c.new_user(admin, "eve"), await c.ident("role", "member")
            await c.ok("PATCH", f"/v3/users/{user_id}", admin, {"user": {"default_project_id": far.project_id}})
            await c.ok("POST", f"/v3/users/{user_id}/credentials/OS-EC2", admin, {"tenant_id": far.project_id})
            await c.ok("PUT", f"/v3/groups/{group_id}/users/{far.user_id}", admin, status=204)
            places = [f"projects/{far.project_id}", f"domains/{far.id}"]
            for actor in (f"users/{user_id}", f"groups/{group_id}"):
                for place in places:
                    await c.ok("PUT", f"/v3/{place}/{actor}/roles/{role_id}", admin, status=204)
                    inherited = f"/v3/OS-INHERIT/{place}/{actor}/roles/{role_id}/inherited_to_projects"
                    await c.ok("PUT", inherited, admin, status=204)
            await c.ok("PATCH", f"/v3/domains/{far.id}", admin, {"domain": {"enabled": False}})
            await c.ok("DELETE", f"/v3/domains/{far.id}", admin)
            deleted = {far.id, far.project_id, far.user_id}
            for table in metadata.tables:
                for row in await c.services.db.fetch(f"SELECT * FROM {table}"):
                    assert deleted.isdisjoint(value for value in row.values() if isinstance(value, str)), table

    run(scenario())
