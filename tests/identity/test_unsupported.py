"""Policies, which are only stored, and what is not supported: federation, and settings of domains."""

from __future__ import annotations

from pathlib import Path

from tests.identity.support import cloud
from tests.identity.test_catalog import make
from tests.support import run


def test_policies_are_stored(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            admin = await c.login("admin")
            body = {"policy": {"type": "application/json", "blob": {"rule": ["a", 1]}, "note": "n"}}
            created = (await c.ok("POST", "/v3/policies", admin, body))["policy"]
            path = f"/v3/policies/{created['id']}"
            links = {"self": f"http://cloud.test:1234/identity{path}"}
            assert created == {**body["policy"], "id": created["id"], "links": links}
            assert (await c.ok("GET", "/v3/policies?type=application/json", admin))["policies"] == [created]
            changed = (await c.ok("PATCH", path, admin, {"policy": {"blob": "text"}}))["policy"]
            assert changed == {**created, "blob": "text"}
            assert (await c.call("GET", path, await c.login("demo"))).status == 403
            await c.ok("DELETE", path, admin)
            assert (await c.call("GET", path, admin)).status == 404

    run(scenario())


def test_federation_is_refused(sqlite_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url, tmp_path) as c:
            admin = await c.login("admin")
            for plural in ("identity_providers", "mappings", "service_providers"):
                path = f"/v3/OS-FEDERATION/{plural}"
                assert (await c.ok("GET", path, admin))[plural] == []
                refused = await c.call("PUT", f"{path}/x", admin, {plural.removesuffix("s"): {}})
                assert refused.status == 501
                assert "Federation is not supported" in refused.json()["error"]["message"]
                for method in ("GET", "PATCH", "DELETE"):
                    assert (await c.call(method, f"{path}/x", admin, {})).status == 404

    run(scenario())


def test_domains_have_no_settings(sqlite_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url, tmp_path) as c:
            admin = await c.login("admin")
            path = f"/v3/domains/{(await make(c, admin, 'domain', name='d'))['id']}/config"
            config = {"config": {"identity": {"driver": "ldap"}}}
            for method, status in (("GET", 404), ("DELETE", 404), ("PUT", 501), ("PATCH", 501)):
                answer = await c.call(method, path, admin, config)
                assert answer.status == status, method
            assert "have no settings" in answer.json()["error"]["message"]
            assert (await c.call("PUT", "/v3/domains/none/config", admin, config)).status == 404

    run(scenario())
