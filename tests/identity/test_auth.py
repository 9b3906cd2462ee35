"""Authentication: methods, scopes and the content of tokens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kilonova import clock
from kilonova.http.client import ClientResponse
from kilonova.identity import passwords
from tests.identity.support import PASSWORDS, REFUSED, SYSTEM, Cloud, cloud, password_auth, project_scope, token_auth
from tests.support import run


def test_project_token_has_user_project_and_roles(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            response = await c.authenticate(password_auth("demo-manager", scope=project_scope("demo")))
            assert response.status == 201
            assert len(response.headers["x-subject-token"]) < 256
            token = response.json()["token"]
            assert token["methods"] == ["password"]
            assert token["user"] == {
                "id": await c.ident("user", "demo-manager"),
                "name": "demo-manager",
                "domain": {"id": "default", "name": "Default"},
                "password_expires_at": None,
            }
            assert token["project"] == {
                "id": await c.ident("project", "demo"),
                "name": "demo",
                "domain": {"id": "default", "name": "Default"},
            }
            assert token["is_domain"] is False
            assert [role["name"] for role in token["roles"]] == ["manager", "member", "reader"]
            assert clock.parse(token["expires_at"]) - clock.parse(token["issued_at"]) == pytest.approx(3600)
            assert token["expires_at"].endswith("Z")
            assert len(token["audit_ids"]) == 1
            assert not {"system", "domain"} & token.keys()

    run(scenario())


def test_catalogue_follows_the_host_of_the_request(sqlite_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url, tmp_path) as c:
            body = password_auth("admin", scope=project_scope("admin"))
            catalog = (await c.authenticate(body)).json()["token"]["catalog"]
            urls = {
                entry["type"]: {(e["interface"], e["region"], e["region_id"], e["url"]) for e in entry["endpoints"]}
                for entry in catalog
            }
            assert urls["compute"] == {
                (interface, "RegionOne", "RegionOne", "http://cloud.test:1234/compute/v2.1")
                for interface in ("public", "internal", "admin")
            }
            assert {"identity", "compute", "placement", "image", "network"} <= urls.keys()
            assert "catalog" not in (await c.authenticate(body, "?nocatalog")).json()["token"]
            c.services.config.public_url = "https://api.example.org/"
            c.services.config.image.url = "https://glance.example.org"
            catalog = (await c.authenticate(body)).json()["token"]["catalog"]
            first = {entry["type"]: entry["endpoints"][0]["url"] for entry in catalog}
            assert first["compute"] == "https://api.example.org/compute/v2.1"
            assert first["image"] == "https://glance.example.org"
            assert "block-storage" not in first
            c.services.mounts = frozenset({"identity", "volume"})
            catalog = (await c.authenticate(body)).json()["token"]["catalog"]
            assert {entry["type"] for entry in catalog} == {"identity", "block-storage", "volumev3", "image"}

    run(scenario())


SCOPES: list[tuple[str, Any, str | None]] = [
    ("by project name and domain name", {"project": {"name": "admin", "domain": {"name": "Default"}}}, "project"),
    ("system", SYSTEM, "system"),
    ("unscoped", "unscoped", None),
    ("unscoped object", {"unscoped": {}}, None),
    ("none", None, None),
]


@pytest.mark.parametrize("what, scope, key", SCOPES, ids=[what for what, _, _ in SCOPES])
def test_token_scopes(sqlite_url: str, tmp_path: Path, what: str, scope: Any, key: str | None) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url, tmp_path) as c:
            response = await c.authenticate(password_auth("admin", scope=scope))
            assert response.status == 201, response.body
            token = response.json()["token"]
            assert {"project", "domain", "system"} & token.keys() == ({key} if key else set())
            assert ("roles" in token) == ("catalog" in token) == (key is not None)
            if key:
                assert [role["name"] for role in token["roles"]] == ["admin", "manager", "member", "reader"]
            if key == "system":
                assert token["system"] == {"all": True}
            assert await c.works(response.headers["x-subject-token"])

    run(scenario())


def test_scope_by_ids_and_domain_scope(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            admin = await c.login("admin")
            user_id = await c.ident("user", "admin")
            body: dict[str, Any] = {
                "auth": {
                    "identity": {
                        "methods": ["password"],
                        "password": {"user": {"id": user_id, "password": "secret of admin"}},
                    },
                    "scope": {"project": {"id": await c.ident("project", "admin")}},
                }
            }
            assert (await c.authenticate(body)).json()["token"]["project"]["name"] == "admin"
            for domain in ({"id": "default"}, {"name": "Default"}):
                assert (await c.authenticate(password_auth("admin", scope={"domain": domain}))).json() == REFUSED
            role_id = await c.ident("role", "manager")
            await c.ok("PUT", f"/v3/domains/default/users/{user_id}/roles/{role_id}", admin, status=204)
            for domain in ({"id": "default"}, {"name": "Default"}):
                token = (await c.authenticate(password_auth("admin", scope={"domain": domain}))).json()["token"]
                assert token["domain"] == {"id": "default", "name": "Default"}
                assert [role["name"] for role in token["roles"]] == ["manager", "member", "reader"]

    run(scenario())


def test_default_scope_is_default_project(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            admin = await c.login("admin")
            user_id = await c.new_user(admin, "eve", "demo")
            project_id = await c.ident("project", "demo")
            await c.ok("PATCH", f"/v3/users/{user_id}", admin, {"user": {"default_project_id": project_id}})
            eve = password_auth("eve", "secret of eve")
            assert (await c.authenticate(eve)).json()["token"]["project"]["id"] == project_id
            assert (
                "project" not in (await c.authenticate({"auth": {**eve["auth"], "scope": "unscoped"}})).json()["token"]
            )
            await c.grant(admin, user_id, "demo", "member", "DELETE")
            assert "project" not in (await c.authenticate(eve)).json()["token"]

    run(scenario())


def test_token_from_token_keeps_expiry_and_audit_chain(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            first = await c.authenticate(password_auth("admin", scope="unscoped"))
            second = await c.authenticate(token_auth(first.headers["x-subject-token"], project_scope("admin")))
            assert second.status == 201
            old, new = first.json()["token"], second.json()["token"]
            assert new["expires_at"] == old["expires_at"]
            assert new["methods"] == ["token", "password"]
            assert new["audit_ids"][1] == old["audit_ids"][0]
            third = await c.authenticate(token_auth(second.headers["x-subject-token"], SYSTEM))
            assert third.json()["token"]["audit_ids"][1] == old["audit_ids"][0]

    run(scenario())


async def _create_disabled(c: Cloud) -> None:
    """Users, projects and domains in every state that forbids a login."""
    admin = await c.login("admin")
    off = {"enabled": False}
    for name in ("off", "stranger"):
        await c.new_user(admin, name, "demo" if name == "off" else None)
    await c.ok("PATCH", f"/v3/users/{await c.ident('user', 'off')}", admin, {"user": off})
    project = (await c.ok("POST", "/v3/projects", admin, {"project": {"name": "closed", **off}}))["project"]
    await c.grant(admin, await c.ident("user", "demo"), "closed", "member")
    domain = (await c.ok("POST", "/v3/domains", admin, {"domain": {"name": "dark", **off}}))["domain"]
    body = {"user": {"name": "ghost", "password": "secret of ghost", "domain_id": domain["id"]}}
    await c.ok("POST", "/v3/users", admin, body)
    await c.ok("POST", "/v3/users", admin, {"user": {"name": "mute"}})
    assert project["enabled"] is False


REFUSALS: dict[str, dict[str, Any]] = {
    "wrong password": password_auth("demo", "wrong", project_scope("demo")),
    "empty password": password_auth("demo", "", project_scope("demo")),
    "unknown user": password_auth("nobody", "x", project_scope("demo")),
    "unknown domain of the user": password_auth("demo", domain={"name": "Nowhere"}),
    "disabled user": password_auth("off", "secret of off", project_scope("demo")),
    "user of a disabled domain": password_auth("ghost", "secret of ghost", "unscoped", domain={"name": "dark"}),
    "user without a password": password_auth("mute", ""),
    "disabled project": password_auth("demo", scope=project_scope("closed")),
    "foreign project": password_auth("demo", scope=project_scope("admin")),
    "unknown project": password_auth("demo", scope=project_scope("none")),
    "unknown project id": password_auth("demo", scope={"project": {"id": "none"}}),
    "foreign domain": password_auth("demo", scope={"domain": {"id": "default"}}),
    "unknown domain": password_auth("demo", scope={"domain": {"name": "none"}}),
    "foreign system": password_auth("demo", scope=SYSTEM),
    "not all of the system": password_auth("admin", scope={"system": {"all": False}}),
    "garbage token": token_auth("gAAAAABgarbage"),
    "empty token": token_auth(""),
    "token that is not text": token_auth("\u00e9\u4e2d"),
    "endless token": token_auth("A" * 4000),
}


def test_every_refusal_has_the_same_message(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            await _create_disabled(c)
            for what, body in REFUSALS.items():
                response = await c.authenticate(body)
                assert (response.status, response.json()) == (401, REFUSED), what
                assert "x-subject-token" not in response.headers, what

    run(scenario())


MALFORMED: dict[str, tuple[Any, int]] = {
    "no auth": ({}, 400),
    "no identity": ({"auth": {}}, 400),
    "no methods": ({"auth": {"identity": {}}}, 400),
    "empty methods": ({"auth": {"identity": {"methods": []}}}, 400),
    "method without its part": ({"auth": {"identity": {"methods": ["password"]}}}, 400),
    "unsupported method": ({"auth": {"identity": {"methods": ["totp"]}}}, 401),
    "user without a domain": (
        {"auth": {"identity": {"methods": ["password"], "password": {"user": {"name": "a", "password": "b"}}}}},
        400,
    ),
    "user without a name": (
        {"auth": {"identity": {"methods": ["password"], "password": {"user": {"password": "b"}}}}},
        400,
    ),
    "password is a number": (password_auth("demo", 5), 400),  # type: ignore[arg-type]
    "project without a domain": (password_auth("demo", scope={"project": {"name": "demo"}}), 400),
    "two scopes": (password_auth("admin", scope={**SYSTEM, **project_scope("admin")}), 400),
    "empty scope": (password_auth("admin", scope={}), 400),
    "unknown word for a scope": (password_auth("admin", scope="everything"), 400),
    "null": (None, 400),
}


def test_malformed_requests_are_refused(sqlite_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url, tmp_path) as c:
            for what, (body, status) in MALFORMED.items():
                response = await c.call("POST", "/v3/auth/tokens", json=body)
                assert response.status == status, (what, response.body)
                error = response.json()["error"]
                assert (error["code"], bool(error["message"])) == (status, True), what

    run(scenario())


@asynccontextmanager
async def _login_in_flight(c: Cloud) -> AsyncIterator[asyncio.Task[ClientResponse]]:
    """A login of the user demo whose password has been verified, and that goes on when the block ends."""
    verified, go_on = asyncio.Event(), asyncio.Event()
    original = passwords.verify_password

    async def slow(password: str, stored: str | None, of_service: bool = False) -> bool:
        result = await original(password, stored)
        verified.set()
        await go_on.wait()
        return result

    passwords.verify_password = slow  # type: ignore[assignment]
    try:
        login = asyncio.create_task(c.authenticate(password_auth("demo", scope=project_scope("demo"))))
        await verified.wait()
        passwords.verify_password = original  # type: ignore[assignment]
        yield login
        go_on.set()
        await login
    finally:
        passwords.verify_password = original  # type: ignore[assignment]


@pytest.mark.parametrize("change", ["new password", "same password again", "disabled and enabled"])
def test_login_during_the_revocation_of_all_tokens_is_refused(database_url: str, tmp_path: Path, change: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            admin = await c.login("admin")
            path = f"/v3/users/{await c.ident('user', 'demo')}"
            async with _login_in_flight(c) as login:
                if change == "disabled and enabled":
                    await c.ok("PATCH", path, admin, {"user": {"enabled": False}})
                    await c.ok("PATCH", path, admin, {"user": {"enabled": True}})
                else:
                    password = "new" if change == "new password" else PASSWORDS["demo"]
                    await c.ok("PATCH", path, admin, {"user": {"password": password}})
            assert login.result().json() == REFUSED

    run(scenario())


def test_login_while_a_role_is_removed_gets_the_other_roles(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            admin, user_id = await c.login("admin"), await c.ident("user", "demo")
            await c.grant(admin, user_id, "demo", "manager")
            async with _login_in_flight(c) as login:
                await c.grant(admin, user_id, "demo", "manager", "DELETE")
            assert login.result().status == 201, login.result().body
            assert [role["name"] for role in login.result().json()["token"]["roles"]] == ["member", "reader"]
            assert await c.works(login.result().headers["x-subject-token"])
            async with _login_in_flight(c) as login:
                await c.grant(admin, user_id, "demo", "member", "DELETE")
            assert login.result().json() == REFUSED

    run(scenario())


def test_token_issued_before_the_removal_of_a_role_does_not_have_it(database_url: str, tmp_path: Path) -> None:
    """The role is removed after the login has read it, and before the token is used."""

    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            admin, user_id = await c.login("admin"), await c.ident("user", "demo")
            await c.grant(admin, user_id, "demo", "manager")
            token = await c.login("demo")
            found = await c.tokens.validate(token)
            assert found is not None
            assert "manager" in found.roles
            await c.grant(admin, user_id, "demo", "manager", "DELETE")
            found = await c.tokens.validate(token)
            assert found is not None
            assert found.roles == {"member", "reader"}

    run(scenario())
