"""Projects and domains: lifecycle, lists and permissions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.identity.support import cloud, project_scope
from tests.support import run


def test_project_is_created_updated_and_deleted(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            admin = await c.login("admin")
            body = {"project": {"name": "lab", "description": "try", "tags": ["a", "b"], "color": "red", "options": {}}}
            created = (await c.ok("POST", "/v3/projects", admin, body))["project"]
            assert len(created["id"]) == 32
            path = f"/v3/projects/{created['id']}"
            assert created == {
                "id": created["id"],
                "name": "lab",
                "domain_id": "default",
                "parent_id": "default",
                "description": "try",
                "enabled": True,
                "is_domain": False,
                "tags": ["a", "b"],
                "options": {},
                "color": "red",
                "links": {"self": f"http://cloud.test:1234/identity{path}"},
            }
            assert (await c.ok("GET", path, admin))["project"] == created
            patch = {"project": {"name": "lab2", "enabled": False, "color": None, "size": 3, "domain_id": "default"}}
            changed = (await c.ok("PATCH", path, admin, patch))["project"]
            assert "color" not in changed
            assert (changed["name"], changed["enabled"], changed["size"], changed["description"]) == (
                "lab2",
                False,
                3,
                "try",
            )
            assert (await c.ok("GET", path, admin))["project"] == changed
            await c.ok("DELETE", path, admin)
            assert (await c.call("GET", path, admin)).status == 404
            assert (await c.call("DELETE", path, admin)).status == 404

    run(scenario())


def test_project_lists_are_filtered_and_paged(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            admin = await c.login("admin")
            domain = (await c.ok("POST", "/v3/domains", admin, {"domain": {"name": "east"}}))["domain"]["id"]
            for name, more in (
                ("p1", {"tags": ["a", "b"]}),
                ("p2", {"tags": ["b"], "enabled": False}),
                ("demo", {"domain_id": domain}),
            ):
                await c.ok("POST", "/v3/projects", admin, {"project": {"name": name, **more}})

            async def names(query: str) -> list[str]:
                return [project["name"] for project in (await c.ok("GET", f"/v3/projects{query}", admin))["projects"]]

            assert await names("") == ["admin", "demo", "demo", "p1", "p2", "service"]
            assert await names("?name=p1") == ["p1"]
            assert await names("?name__startswith=p") == ["p1", "p2"]
            assert await names("?name__startswith=P") == []
            assert await names("?name__istartswith=P&enabled=true") == ["p1"]
            assert await names("?name__endswith=emo") == ["demo", "demo"]
            assert await names("?name__endswith=a+longer+text") == []
            assert await names("?name__icontains=RVI") == ["service"]
            assert await names("?name__contains=%25") == []
            assert await names("?name__iequals=ADMIN") == ["admin"]
            assert await names("?name__contains=") == await names("")
            assert await names(f"?name=demo&domain_id={domain}") == ["demo"]
            assert await names(f"?parent_id={domain}") == ["demo"]
            assert await names("?enabled=false") == ["p2"]
            assert await names("?enabled=True&name=p2") == []
            assert await names("?tags=b") == ["p1", "p2"]
            assert await names("?tags=a,b") == ["p1"]
            assert await names("?tags-any=a,x") == ["p1"]
            assert await names("?not-tags=a,b&tags-any=b") == ["p2"]
            assert await names("?not-tags-any=a&tags=b") == ["p2"]
            assert await names("?is_domain=true") == []
            assert (await c.call("GET", "/v3/projects?nme=p1", admin)).status == 400
            pages: list[str] = []
            path = "/v3/projects?limit=4"
            while path:
                response = await c.ok("GET", path, admin)
                pages += [project["name"] for project in response["projects"]]
                path = (response["links"]["next"] or "").removeprefix("http://cloud.test:1234/identity")
            assert pages == await names("")
            for query in ("limit=0", "limit=x", "marker=none"):
                assert (await c.call("GET", f"/v3/projects?{query}", admin)).status == 400

    run(scenario())


def test_project_names_are_unique_in_domain(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            admin = await c.login("admin")
            demo = await c.ident("project", "demo")
            response = await c.call("POST", "/v3/projects", admin, {"project": {"name": "demo"}})
            assert response.status == 409
            assert response.json()["error"] == {
                "code": 409,
                "message": "Conflict occurred attempting to store project - Duplicate entry found with name demo.",
                "title": "Conflict",
            }
            patch = {"project": {"name": "admin", "description": "x"}}
            assert (await c.call("PATCH", f"/v3/projects/{demo}", admin, patch)).status == 409
            shown = (await c.ok("GET", f"/v3/projects/{demo}", admin))["project"]
            assert (shown["name"], shown["description"]) == ("demo", "A project to try things in.")

    run(scenario())


BAD: list[tuple[dict[str, Any], int]] = [
    ({}, 400),
    ({"name": ""}, 400),
    ({"name": "   "}, 400),
    ({"name": "x" * 65}, 400),
    ({"name": 5}, 400),
    ({"name": "n", "enabled": "yes"}, 400),
    ({"name": "n", "domain_id": "none"}, 404),
    ({"name": "n", "parent_id": "none"}, 404),
    ({"name": "n", "is_domain": True}, 400),
    ({"name": "n", "options": {"immutable": "yes"}}, 400),
    ({"name": "n", "options": {"mutable": True}}, 400),
    ({"name": "n", "domain_id": "default", "parent_id": "none"}, 404),
    ({"name": "n", "tags": ["a,b"]}, 400),
    ({"name": "n", "tags": ["a", "a"]}, 400),
]


@pytest.mark.parametrize("body, status", BAD, ids=lambda value: str(value)[:40])
def test_invalid_projects_are_refused(sqlite_url: str, tmp_path: Path, body: dict[str, Any], status: int) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url, tmp_path) as c:
            admin = await c.login("admin")
            before = await c.services.db.fetch("SELECT * FROM projects")
            response = await c.call("POST", "/v3/projects", admin, {"project": body})
            assert response.status == status, response.body
            assert await c.services.db.fetch("SELECT * FROM projects") == before

    run(scenario())


def test_child_projects(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            admin = await c.login("admin")
            demo = await c.ident("project", "demo")
            child = (await c.ok("POST", "/v3/projects", admin, {"project": {"name": "sub", "parent_id": demo}}))[
                "project"
            ]
            assert (child["parent_id"], child["domain_id"]) == (demo, "default")
            listed = (await c.ok("GET", f"/v3/projects?parent_id={demo}", admin))["projects"]
            assert [project["id"] for project in listed] == [child["id"]]
            assert (await c.call("DELETE", f"/v3/projects/{demo}", admin)).status == 403
            move = {"project": {"parent_id": "default"}}
            assert (await c.call("PATCH", f"/v3/projects/{child['id']}", admin, move)).status == 400
            await c.ok("DELETE", f"/v3/projects/{child['id']}", admin)
            await c.ok("DELETE", f"/v3/projects/{demo}", admin)

    run(scenario())


def test_relatives_of_a_project(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            admin, demo = await c.login("admin"), await c.ident("project", "demo")

            async def make(name: str, parent: str) -> str:
                body = {"project": {"name": name, "parent_id": parent}}
                return str((await c.ok("POST", "/v3/projects", admin, body))["project"]["id"])

            middle, other = await make("middle", demo), await make("other", demo)
            leaf = await make("leaf", middle)

            async def shown(project_id: str, query: str, token: str = admin) -> dict[str, Any]:
                found = await c.ok("GET", f"/v3/projects/{project_id}?{query}", token)
                return dict(found["project"])

            assert (await shown(leaf, "parents_as_ids"))["parents"] == {middle: {demo: {"default": None}}}
            assert (await shown(demo, "parents_as_ids"))["parents"] == {"default": None}
            assert (await shown(demo, "subtree_as_ids"))["subtree"] == {middle: {leaf: None}, other: None}
            assert (await shown(leaf, "subtree_as_ids"))["subtree"] is None
            found = await shown(leaf, "parents_as_list&subtree_as_list")
            assert [entry["project"]["id"] for entry in found["parents"]] == [middle, demo]
            assert found["subtree"] == []
            found = await shown(demo, "subtree_as_list=1")
            assert [entry["project"]["name"] for entry in found["subtree"]] == ["middle", "other", "leaf"]
            assert "parents" not in found
            # Lists have only what the caller may see.
            assert (await shown(demo, "subtree_as_list", await c.login("demo")))["subtree"] == []
            both = await c.call("GET", f"/v3/projects/{demo}?parents_as_list&parents_as_ids", admin)
            assert both.status == 400
            fifth = await make("fifth", await make("fourth", leaf))
            body = {"project": {"name": "sixth", "parent_id": fifth}}
            assert (await c.call("POST", "/v3/projects", admin, body)).status == 403

    run(scenario())


def test_no_project_is_disabled_above_an_enabled_one(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            admin, demo = await c.login("admin"), await c.ident("project", "demo")
            body = {"project": {"name": "child", "parent_id": demo}}
            child = (await c.ok("POST", "/v3/projects", admin, body))["project"]["id"]
            disable, enable = {"project": {"enabled": False}}, {"project": {"enabled": True}}
            assert (await c.call("PATCH", f"/v3/projects/{demo}", admin, disable)).status == 403
            await c.ok("PATCH", f"/v3/projects/{child}", admin, disable)
            await c.ok("PATCH", f"/v3/projects/{demo}", admin, disable)
            assert (await c.call("PATCH", f"/v3/projects/{child}", admin, enable)).status == 403
            body = {"project": {"name": "second", "parent_id": demo}}
            assert (await c.call("POST", "/v3/projects", admin, body)).status == 403
            await c.ok("POST", "/v3/projects", admin, {"project": {**body["project"], "enabled": False}})
            await c.ok("PATCH", f"/v3/projects/{demo}", admin, enable)
            await c.ok("PATCH", f"/v3/projects/{child}", admin, enable)

    run(scenario())


def test_project_tags(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            admin, demo = await c.login("admin"), await c.login("demo")
            path = f"/v3/projects/{await c.ident('project', 'demo')}/tags"
            assert (await c.ok("PUT", path, admin, {"tags": ["x", "y"]}))["tags"] == ["x", "y"]
            await c.ok("PUT", f"{path}/z%20%C3%A9", admin, status=201)
            assert (await c.ok("GET", path, demo))["tags"] == ["x", "y", "z é"]
            assert (await c.call("HEAD", f"{path}/x", demo)).status == 204
            assert (await c.call("GET", f"{path}/none", demo)).status == 404
            await c.ok("DELETE", f"{path}/x", admin)
            assert (await c.call("DELETE", f"{path}/x", admin)).status == 404
            assert (await c.call("PUT", f"{path}/n", demo)).status == 403
            assert (await c.ok("GET", path, demo))["tags"] == ["y", "z é"]
            await c.ok("DELETE", path, admin)
            assert (await c.ok("GET", path, demo))["tags"] == []
            options = {"project": {"options": {"immutable": True}}}
            await c.ok("PATCH", path.removesuffix("/tags"), admin, options)
            assert (await c.call("PUT", f"{path}/n", admin)).status == 403

    run(scenario())


def test_project_permissions(sqlite_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url, tmp_path) as c:
            admin = await c.login("admin")
            user_id = await c.new_user(admin, "auditor")
            reader = await c.ident("role", "reader")
            await c.ok("PUT", f"/v3/system/users/{user_id}/roles/{reader}", admin, status=204)
            auditor = await c.login("auditor", {"system": {"all": True}}, "secret of auditor")
            demo, manager = await c.login("demo"), await c.login("demo-manager")
            own, foreign = await c.ident("project", "demo"), await c.ident("project", "admin")
            statuses = {
                (who, what): (await c.call(method, path, token, body)).status
                for who, token in (("demo", demo), ("manager", manager), ("auditor", auditor))
                for what, method, path, body in (
                    ("list", "GET", "/v3/projects", None),
                    ("own", "GET", f"/v3/projects/{own}", None),
                    ("foreign", "GET", f"/v3/projects/{foreign}", None),
                    ("unknown", "GET", "/v3/projects/none", None),
                    ("create", "POST", "/v3/projects", {"project": {"name": "n"}}),
                    ("update", "PATCH", f"/v3/projects/{own}", {"project": {"name": "n"}}),
                    ("delete", "DELETE", f"/v3/projects/{own}", None),
                    ("domains", "GET", "/v3/domains", None),
                    ("own domain", "GET", "/v3/domains/default", None),
                )
            }
            changes = {"create": 403, "update": 403, "delete": 403}
            member = {"list": 403, "own": 200, "foreign": 403, "unknown": 403, "domains": 403, "own domain": 200}
            reads = {"list": 200, "own": 200, "foreign": 200, "unknown": 404, "domains": 200, "own domain": 200}
            for who, expected in (("demo", member), ("manager", member), ("auditor", reads)):
                assert {what: statuses[who, what] for what in (expected | changes)} == expected | changes, who

    run(scenario())


def test_domain_is_created_updated_and_deleted(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            admin = await c.login("admin")
            created = (await c.ok("POST", "/v3/domains", admin, {"domain": {"name": "east", "note": "n"}}))["domain"]
            path = f"/v3/domains/{created['id']}"
            assert (created["description"], created["enabled"], created["note"]) == ("", True, "n")
            assert (await c.ok("GET", "/v3/domains?name=east", admin))["domains"] == [created]
            assert [d["name"] for d in (await c.ok("GET", "/v3/domains", admin))["domains"]] == ["Default", "east"]
            assert (await c.call("POST", "/v3/domains", admin, {"domain": {"name": "east"}})).status == 409
            parent = await c.ok("POST", "/v3/projects", admin, {"project": {"name": "a", "domain_id": created["id"]}})
            child = {"project": {"name": "b", "parent_id": parent["project"]["id"]}}
            await c.ok("POST", "/v3/projects", admin, child)
            user = {"user": {"name": "eve", "domain_id": created["id"], "password": "secret of eve"}}
            user_id = (await c.ok("POST", "/v3/users", admin, user))["user"]["id"]
            await c.grant(admin, user_id, "a", "member")
            await c.grant(admin, await c.ident("user", "demo"), "b", "member")
            assert (await c.call("DELETE", path, admin)).status == 403
            patch = {"domain": {"enabled": False, "name": "dark", "description": None}}
            assert (await c.ok("PATCH", path, admin, patch))["domain"]["name"] == "dark"
            await c.ok("DELETE", path, admin)
            assert (await c.call("GET", path, admin)).status == 404
            assert await c.ident("user", "eve") is None
            left = await c.services.db.fetch_value("SELECT count(*) FROM role_assignments")
            assert left == 9
            assert await c.login("demo", project_scope("demo"))

    run(scenario())


@pytest.mark.parametrize(
    "noun, name", [("project", "demo"), ("user", "demo"), ("role", "member"), ("domain", "Default")]
)
def test_unknown_query_keys_of_one_object_are_ignored(database_url: str, tmp_path: Path, noun: str, name: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            admin, item_id = await c.login("admin"), await c.ident(noun, name)
            shown = await c.ok("GET", f"/v3/{noun}s/{item_id}?domain_id=default&domain_id=other&other=1", admin)
            assert shown[noun]["id"] == item_id

    run(scenario())
