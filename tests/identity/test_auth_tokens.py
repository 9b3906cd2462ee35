"""Validation, revocation and scopes of tokens over HTTP, and version documents."""

from __future__ import annotations

from pathlib import Path

import pytest

from kilonova import clock
from tests.identity.support import SYSTEM, cloud, project_scope
from tests.support import run


def test_validation_permissions(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            demo, other = await c.login("demo"), await c.login("demo-admin")
            manager, service = await c.login("demo-manager"), await c.login("kilonova")
            for caller, subject, status in (
                (demo, demo, 200),
                (other, demo, 200),
                (service, demo, 200),
                (manager, demo, 403),
                (demo, "gAAAAABnone", 404),
                ("gAAAAABnone", demo, 401),
            ):
                response = await c.call("GET", "/v3/auth/tokens", caller, X_Subject_Token=subject)
                assert response.status == status
                head = await c.call("HEAD", "/v3/auth/tokens", caller, X_Subject_Token=subject)
                assert (head.status, head.body) == (status, b"")
            response = await c.call("GET", "/v3/auth/tokens?nocatalog", service, X_Subject_Token=demo)
            assert response.headers["x-subject-token"] == demo
            token = response.json()["token"]
            assert token["user"]["name"] == "demo"
            assert [role["name"] for role in token["roles"]] == ["member", "reader"]
            assert "catalog" not in token
            assert (await c.call("GET", "/v3/auth/tokens", demo)).status == 400

    run(scenario())


def test_owner_and_admin_revoke_token(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            admin, demo, twin = await c.login("admin"), await c.login("demo"), await c.login("demo")
            manager = await c.login("demo-manager")
            assert (await c.call("DELETE", "/v3/auth/tokens", manager, X_Subject_Token=demo)).status == 403
            assert await c.works(demo)
            assert (await c.call("DELETE", "/v3/auth/tokens", demo, X_Subject_Token=demo)).status == 204
            assert not await c.works(demo)
            assert await c.works(twin)
            assert (await c.call("DELETE", "/v3/auth/tokens", admin, X_Subject_Token=twin)).status == 204
            assert not await c.works(twin)
            assert (await c.call("GET", "/v3/auth/tokens", admin, X_Subject_Token=twin)).status == 404

    run(scenario())


def test_expired_token_is_valid_only_with_allow_expired(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url, tmp_path) as c:
            demo = await c.login("demo")
            start = clock.now()
            monkeypatch.setattr(clock, "now", lambda: start + 3601)
            assert not await c.works(demo)
            service = await c.login("kilonova")
            assert (await c.call("GET", "/v3/auth/tokens", service, X_Subject_Token=demo)).status == 404
            path = "/v3/auth/tokens?allow_expired=1"
            assert (await c.call("GET", path, service, X_Subject_Token=demo)).status == 200
            monkeypatch.setattr(clock, "now", lambda: start + 3600 + 2 * 86400 + 1)
            service = await c.login("kilonova")
            assert (await c.call("GET", path, service, X_Subject_Token=demo)).status == 404

    run(scenario())


def test_scopes_of_own_token(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            admin, demo = await c.login("admin"), await c.login("demo", "unscoped")

            async def names(noun: str, token: str) -> list[str]:
                return [entry["name"] for entry in (await c.ok("GET", f"/v3/auth/{noun}", token))[noun]]

            assert await names("projects", demo) == ["demo"]
            assert await names("domains", demo) == []
            assert (await c.ok("GET", "/v3/auth/system", demo))["system"] == []
            assert await names("projects", admin) == ["admin"]
            assert (await c.ok("GET", "/v3/auth/system", admin))["system"] == [{"all": True}]
            off = {"project": {"enabled": False}}
            await c.ok("PATCH", f"/v3/projects/{await c.ident('project', 'demo')}", admin, off)
            assert await names("projects", demo) == []

    run(scenario())


def test_catalogue_of_the_own_token(sqlite_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url, tmp_path) as c:
            catalog = (await c.ok("GET", "/v3/auth/catalog", await c.login("demo")))["catalog"]
            assert {entry["type"] for entry in catalog} >= {"compute", "identity"}
            assert (await c.call("GET", "/v3/auth/catalog", await c.login("demo", "unscoped"))).status == 403

    run(scenario())


def test_requests_without_token_are_refused(sqlite_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url, tmp_path) as c:
            for path in ("/v3/users", "/v3/auth/tokens", "/v3/nothing"):
                assert (await c.call("GET", path)).status == 401
            assert (await c.call("GET", "/v3/nothing", await c.login("demo"))).status == 404

    run(scenario())


def test_version_documents_need_no_token(sqlite_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url, tmp_path) as c:
            for path in ("", "/"):
                response = await c.call("GET", path)
                assert response.status == 300
                (version,) = response.json()["versions"]["values"]
                assert version["status"] == "stable"
                assert version["links"] == [{"rel": "self", "href": "http://cloud.test:1234/identity/v3/"}]
            for path in ("/v3", "/v3/"):
                response = await c.call("GET", path)
                assert (response.status, response.json()["version"]) == (200, version)

    run(scenario())


def test_revocation_of_tokens_of_every_scope(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            admin = await c.login("admin")
            user_id = await c.new_user(admin, "eve", "demo")
            role_id = await c.ident("role", "reader")
            await c.ok("PUT", f"/v3/system/users/{user_id}/roles/{role_id}", admin, status=204)
            await c.ok("PUT", f"/v3/domains/default/users/{user_id}/roles/{role_id}", admin, status=204)
            scopes = [project_scope("demo"), SYSTEM, {"domain": {"id": "default"}}, "unscoped"]
            tokens = [await c.login("eve", scope, "secret of eve") for scope in scopes]
            await c.ok("PATCH", f"/v3/users/{user_id}", admin, {"user": {"password": "another"}})
            assert [await c.works(token) for token in tokens] == [False] * 4
            assert await c.works(await c.login("eve", SYSTEM, "another"))

    run(scenario())
