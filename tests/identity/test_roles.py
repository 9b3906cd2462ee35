"""Roles and implied roles."""

from __future__ import annotations

from pathlib import Path

from tests.identity.support import cloud
from tests.support import run


def test_role_is_created_updated_and_deleted(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            admin = await c.login("admin")
            created = (await c.ok("POST", "/v3/roles", admin, {"role": {"name": "ops"}}))["role"]
            path = f"/v3/roles/{created['id']}"
            assert created == {
                "id": created["id"],
                "name": "ops",
                "domain_id": None,
                "description": None,
                "options": {},
                "links": {"self": f"http://cloud.test:1234/identity{path}"},
            }
            names = [role["name"] for role in (await c.ok("GET", "/v3/roles", admin))["roles"]]
            assert names == ["admin", "manager", "member", "ops", "reader", "service"]
            assert (await c.ok("GET", "/v3/roles?name=ops", admin))["roles"] == [created]
            assert (await c.call("POST", "/v3/roles", admin, {"role": {"name": "ops"}})).status == 409
            patched = await c.ok("PATCH", path, admin, {"role": {"description": "d"}})
            assert patched["role"] == {**created, "description": "d"}
            await c.ok("DELETE", path, admin)
            assert (await c.call("GET", path, admin)).status == 404

    run(scenario())


def test_roles_of_domains(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            admin = await c.login("admin")
            far = (await c.ok("POST", "/v3/domains", admin, {"domain": {"name": "far", "enabled": False}}))["domain"]
            role = {"name": "member", "domain_id": far["id"]}
            created = (await c.ok("POST", "/v3/roles", admin, {"role": role}))["role"]
            assert created["domain_id"] == far["id"]
            assert (await c.call("POST", "/v3/roles", admin, {"role": role})).status == 409
            unknown = {"role": {"name": "x", "domain_id": "none"}}
            assert (await c.call("POST", "/v3/roles", admin, unknown)).status == 404
            # Lists have the roles of one domain, or of the whole cloud.
            assert (await c.ok("GET", f"/v3/roles?domain_id={far['id']}", admin))["roles"] == [created]
            assert created not in (await c.ok("GET", "/v3/roles?name=member", admin))["roles"]
            path = f"/v3/roles/{created['id']}"
            assert (await c.call("PATCH", path, admin, {"role": {"domain_id": "default"}})).status == 400
            changed = await c.ok("PATCH", path, admin, {"role": {"name": "helper", "domain_id": far["id"]}})
            assert changed["role"]["name"] == "helper"
            await c.ok("DELETE", f"/v3/domains/{far['id']}", admin)
            assert (await c.call("GET", path, admin)).status == 404

    run(scenario())


def test_immutable_roles_cannot_be_changed(sqlite_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url, tmp_path) as c:
            admin = await c.login("admin")
            body = {"role": {"name": "ops", "options": {"immutable": True}}}
            created = (await c.ok("POST", "/v3/roles", admin, body))["role"]
            assert created["options"] == {"immutable": True}
            path = f"/v3/roles/{created['id']}"
            for patch in ({"name": "x"}, {"name": "x", "options": {"immutable": False}}, {"options": {}}):
                assert (await c.call("PATCH", path, admin, {"role": patch})).status == 403
            assert (await c.call("DELETE", path, admin)).status == 403
            await c.ok("PATCH", path, admin, {"role": {"options": {"immutable": False}}})
            await c.ok("PATCH", path, admin, {"role": {"name": "x"}})
            await c.ok("DELETE", path, admin)

    run(scenario())


def test_implied_roles(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            admin, demo = await c.login("admin"), await c.login("demo")
            ops = (await c.ok("POST", "/v3/roles", admin, {"role": {"name": "ops"}}))["role"]["id"]
            ids = {name: await c.ident("role", name) for name in ("admin", "manager", "member", "reader", "service")}
            path = f"/v3/roles/{ids['reader']}/implies"
            created = await c.ok("PUT", f"{path}/{ops}", admin, status=201)
            assert created["role_inference"]["prior_role"]["name"] == "reader"
            assert created["role_inference"]["implies"]["name"] == "ops"
            await c.ok("PUT", f"{path}/{ops}", admin, status=201)
            found = await c.tokens.validate(demo)
            assert found is not None
            assert found.roles == {"member", "reader", "ops"}
            shown = (await c.ok("GET", path, admin))["role_inference"]
            assert [role["name"] for role in shown["implies"]] == ["ops"]
            inferences = (await c.ok("GET", "/v3/role_inferences", admin))["role_inferences"]
            pairs = {(entry["prior_role"]["name"], role["name"]) for entry in inferences for role in entry["implies"]}
            assert pairs == {("admin", "manager"), ("manager", "member"), ("member", "reader"), ("reader", "ops")}
            # Cycles are allowed.
            await c.ok("PUT", f"/v3/roles/{ops}/implies/{ids['member']}", admin, status=201)
            assert (await c.tokens.validate(demo)) is not None
            assert (await c.call("PUT", f"{path}/{ids['admin']}", admin)).status == 403
            assert (await c.call("PUT", f"{path}/none", admin)).status == 404
            assert (await c.call("HEAD", f"{path}/{ops}", admin)).status == 204
            assert (await c.ok("GET", f"{path}/{ops}", admin))["role_inference"] == created["role_inference"]
            await c.ok("DELETE", f"{path}/{ops}", admin)
            for method in ("HEAD", "GET", "DELETE"):
                assert (await c.call(method, f"{path}/{ops}", admin)).status == 404

    run(scenario())
