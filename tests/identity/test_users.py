"""Users: lifecycle, lists, passwords and permissions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kilonova.http.client import InProcess
from kilonova.identity import passwords
from tests.identity.support import REFUSED, cloud, password_auth, project_scope
from tests.support import run
from tests.support.audit import from_client, recorded_events


def test_user_is_created_updated_and_deleted(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            admin = await c.login("admin")
            project_id = await c.ident("project", "demo")
            body = {
                "user": {
                    "name": "eve",
                    "password": "first",
                    "email": "eve@example.org",
                    "default_project_id": project_id,
                    "description": "d",
                }
            }
            created = (await c.ok("POST", "/v3/users", admin, body))["user"]
            path = f"/v3/users/{created['id']}"
            assert created == {
                "id": created["id"],
                "name": "eve",
                "domain_id": "default",
                "enabled": True,
                "default_project_id": project_id,
                "email": "eve@example.org",
                "description": "d",
                "password_expires_at": None,
                "options": {},
                "links": {"self": f"http://cloud.test:1234/identity{path}"},
            }
            assert (await c.ok("GET", path, admin))["user"] == created
            patch = {"user": {"name": "eva", "email": None, "default_project_id": None}}
            changed = (await c.ok("PATCH", path, admin, patch))["user"]
            assert changed["name"] == "eva"
            assert not {"email", "default_project_id"} & changed.keys()
            await c.grant(admin, created["id"], "demo", "member")
            await c.login("eva", project_scope("demo"), "first")
            await c.ok("DELETE", path, admin)
            assert (await c.call("GET", path, admin)).status == 404

    run(scenario())


def test_user_lists_are_filtered(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            admin = await c.login("admin")
            await c.ok("POST", "/v3/users", admin, {"user": {"name": "off", "enabled": False}})

            async def names(query: str) -> list[str]:
                return [user["name"] for user in (await c.ok("GET", f"/v3/users{query}", admin))["users"]]

            assert len(await names("")) == 7
            assert await names("?name=demo") == ["demo"]
            assert await names("?domain_id=none") == []
            assert await names("?enabled=0") == ["off"]
            assert (await names("?limit=2")) == ["admin", "demo"]
            assert (await c.call("GET", "/v3/users?password_hash=x", admin)).status == 400

    run(scenario())


BAD: list[tuple[dict[str, Any], int]] = [
    ({}, 400),
    ({"name": "   "}, 400),
    ({"name": "x" * 256}, 400),
    ({"name": "n", "password": ""}, 400),
    ({"name": "n", "password": 5}, 400),
    ({"name": "n", "domain_id": "none"}, 404),
    ({"name": "demo"}, 409),
    ({"name": "n", "options": {"ignore_password_expiry": 1}}, 400),
    ({"name": "n", "options": {"multi_factor_auth_enabled": True}}, 400),
    ({"name": "n", "options": {"multi_factor_auth_rules": [["password", "totp"]]}}, 400),
]


@pytest.mark.parametrize("body, status", BAD, ids=lambda value: str(value)[:40])
def test_invalid_users_are_refused(sqlite_url: str, tmp_path: Path, body: dict[str, Any], status: int) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url, tmp_path) as c:
            admin = await c.login("admin")
            response = await c.call("POST", "/v3/users", admin, {"user": body})
            assert response.status == status, response.body
            assert await c.services.db.fetch_value("SELECT count(*) FROM users") == 6

    run(scenario())


def test_passwords_are_never_shown_and_hashes_never_accepted(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            admin = await c.login("admin")
            body = {"user": {"name": "eve", "password": "Geheim!", "password_hash": "$scrypt$x", "id": "mine"}}
            created = await c.call("POST", "/v3/users", admin, body)
            path = f"/v3/users/{created.json()['user']['id']}"
            patched = await c.call("PATCH", path, admin, {"user": {"password": "Neu!", "password_hash": "x"}})
            listed = await c.call("GET", "/v3/users", admin)
            for response in (created, patched, listed, await c.call("GET", path, admin)):
                assert response.status in (200, 201)
                for secret in (b"Geheim!", b"Neu!", b"scrypt", b"password_hash", b'"mine"'):
                    assert secret not in response.body

    run(scenario())


def test_change_of_own_password(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            demo, manager = await c.login("demo"), await c.login("demo-manager")
            path = f"/v3/users/{await c.ident('user', 'demo')}/password"
            right = {"user": {"password": "new one", "original_password": "secret of demo"}}
            wrong = {"user": {"password": "new one", "original_password": "guess"}}
            assert (await c.call("POST", path, manager, right)).status == 403
            assert (await c.call("POST", path, None, right)).status == 401
            assert (await c.call("POST", path, demo, {"user": {"password": "x"}})).status == 400
            refused = await c.call("POST", path, demo, wrong)
            assert (refused.status, refused.json()) == (401, REFUSED)
            assert await c.works(demo)
            assert (await c.call("POST", path, demo, right)).status == 204
            assert not await c.works(demo)
            await c.login("demo", password="new one")

    run(scenario())


def test_options_of_users(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            admin, demo = await c.login("admin"), await c.login("demo")
            path = f"/v3/users/{await c.ident('user', 'demo')}"
            assert (await c.ok("GET", path, admin))["user"]["options"] == {}
            options = {"lock_password": True, "ignore_password_expiry": True, "multi_factor_auth_enabled": False}
            changed = await c.ok("PATCH", path, admin, {"user": {"options": options}})
            assert changed["user"]["options"] == options
            body = {"user": {"password": "new one", "original_password": "secret of demo"}}
            refused = await c.call("POST", f"{path}/password", demo, body)
            assert refused.status == 403
            assert "lock_password" in refused.json()["error"]["message"]
            # An administrator may still set the password. Null removes an option.
            await c.ok("PATCH", path, admin, {"user": {"password": "other"}})
            changed = await c.ok("PATCH", path, admin, {"user": {"options": {"lock_password": None}}})
            assert changed["user"]["options"] == {"ignore_password_expiry": True, "multi_factor_auth_enabled": False}
            body["user"]["original_password"] = "other"
            demo = await c.login("demo", password="other")
            await c.ok("POST", f"{path}/password", demo, body, status=204)

    run(scenario())


def test_change_of_own_password_keeps_nothing_of_the_old_one(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            tokens = [await c.login("demo"), await c.login("demo"), await c.login("demo-reader")]
            path = f"/v3/users/{await c.ident('user', 'demo')}/password"
            body = {"user": {"password": "new one", "original_password": "secret of demo"}}
            await c.ok("POST", path, tokens[0], body, status=204)
            assert [await c.works(token) for token in tokens] == [False, False, True]
            assert (await c.authenticate(password_auth("demo", "secret of demo"))).status == 401
            changed = await c.services.db.fetch("SELECT name FROM users WHERE password_changed_at IS NOT NULL")
            assert [row["name"] for row in changed] == ["demo"]

    run(scenario())


def test_nobody_changes_the_password_of_another_user(sqlite_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url, tmp_path) as c:
            path = f"/v3/users/{await c.ident('user', 'demo')}/password"
            body = {"user": {"password": "new one", "original_password": "secret of demo"}}
            for name in ("admin", "demo-admin", "demo-reader", "kilonova"):
                assert (await c.call("POST", path, await c.login(name), body)).status == 403
                assert (await c.call("POST", "/v3/users/none/password", await c.login(name), body)).status == 403
            await c.login("demo", password="secret of demo")

    run(scenario())


BAD_PASSWORDS = ["", "x" * 4097, "with\0NUL", None, 5, ["x"]]


@pytest.mark.parametrize("bad", BAD_PASSWORDS, ids=lambda value: str(value)[:10])
def test_invalid_passwords_are_refused(sqlite_url: str, tmp_path: Path, bad: Any) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url, tmp_path) as c:
            demo, admin = await c.login("demo"), await c.login("admin")
            path = f"/v3/users/{await c.ident('user', 'demo')}"
            for body in (
                {"password": bad, "original_password": "secret of demo"},
                {"password": "new one", "original_password": bad},
            ):
                refused = await c.call("POST", f"{path}/password", demo, {"user": body})
                assert refused.status in ((401,) if bad == "" and body["password"] != "" else (400,)), body
            if bad is not None:  # which removes the password
                assert (await c.call("PATCH", path, admin, {"user": {"password": bad}})).status == 400
            assert await c.works(demo)
            await c.login("demo", password="secret of demo")

    run(scenario())


def test_reset_by_administrator_revokes_tokens(sqlite_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url, tmp_path) as c:
            demo, admin = await c.login("demo"), await c.login("admin")
            path = f"/v3/users/{await c.ident('user', 'demo')}"
            assert (await c.call("PATCH", path, demo, {"user": {"password": "mine"}})).status == 403
            await c.ok("PATCH", path, admin, {"user": {"password": "reset"}})
            assert not await c.works(demo)
            await c.login("demo", password="reset")

    run(scenario())


def test_wrong_original_password_costs_a_hash_and_is_recorded(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    derived: list[str] = []
    derive = passwords._derive

    def counted(password: str, *arguments: Any) -> bytes:
        derived.append(password)
        return derive(password, *arguments)

    async def scenario() -> None:
        async with cloud(sqlite_url, tmp_path) as c:
            c.caller = InProcess(from_client(c.app), "/identity")
            demo, user_id = await c.login("demo"), await c.ident("user", "demo")
            body = {"user": {"password": "new one", "original_password": "guess"}}
            monkeypatch.setattr(passwords, "_derive", counted)
            with recorded_events(c.services) as events:
                assert (await c.call("POST", f"/v3/users/{user_id}/password", demo, body)).status == 401
            (event,) = events
            assert derived == ["guess"]
            assert (event["action"], event["target"]["id"]) == ("update/password", user_id)
            assert event["reason"] == {"code": 401, "text": "wrong password"}
            assert event["initiator"]["id"] == user_id

    run(scenario())


def test_user_permissions(sqlite_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url, tmp_path) as c:
            demo = await c.login("demo")
            own, foreign = await c.ident("user", "demo"), await c.ident("user", "admin")
            for method, path, body, status in (
                ("GET", f"/v3/users/{own}", None, 200),
                ("GET", f"/v3/users/{foreign}", None, 403),
                ("GET", "/v3/users/none", None, 403),
                ("GET", "/v3/users", None, 403),
                ("POST", "/v3/users", {"user": {"name": "n"}}, 403),
                ("PATCH", f"/v3/users/{own}", {"user": {"email": "e"}}, 403),
                ("DELETE", f"/v3/users/{own}", None, 403),
                ("GET", f"/v3/users/{own}/projects", None, 200),
                ("GET", f"/v3/users/{foreign}/projects", None, 403),
                ("GET", f"/v3/users/{own}/groups", None, 200),
                ("GET", "/v3/roles", None, 403),
                ("GET", "/v3/role_assignments", None, 403),
                ("GET", "/v3/regions", None, 200),
                ("GET", "/v3/services", None, 403),
            ):
                assert (await c.call(method, path, demo, body)).status == status, (method, path)

    run(scenario())


def test_projects_of_user(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            admin, demo = await c.login("admin"), await c.login("demo")
            user_id = await c.ident("user", "demo")
            await c.grant(admin, user_id, "service", "reader")

            async def names(query: str = "") -> list[str]:
                response = await c.ok("GET", f"/v3/users/{user_id}/projects{query}", demo)
                return [project["name"] for project in response["projects"]]

            assert await names() == ["demo", "service"]
            assert await names("?name=demo") == ["demo"]
            assert (await c.call("GET", "/v3/users/none/projects", admin)).status == 404

    run(scenario())
