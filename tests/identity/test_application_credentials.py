"""Application credentials: lifecycle, logins, tokens, and what ends them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kilonova import clock
from kilonova.http.client import ClientResponse, InProcess
from kilonova.identity import passwords
from tests.identity.support import REFUSED, Cloud, cloud, project_scope, token_auth
from tests.support import run
from tests.support.audit import from_client, recorded_events


class Owner:
    """Application credentials of the user demo."""

    def __init__(self, c: Cloud) -> None:
        self.c = c

    async def log_in(self) -> Owner:
        self.admin, self.demo = await self.c.login("admin"), await self.c.login("demo")
        self.user_id, self.project_id = await self.c.ident("user", "demo"), await self.c.ident("project", "demo")
        self.path = f"/v3/users/{self.user_id}/application_credentials"
        return self

    async def post(self, token: str | None = None, name: str = "ci", **values: Any) -> ClientResponse:
        body = {"application_credential": {"name": name, **values}}
        return await self.c.call("POST", self.path, token or self.demo, body)

    async def create(self, token: str | None = None, name: str = "ci", **values: Any) -> Any:
        response = await self.post(token, name, **values)
        assert response.status == 201, response.body
        return response.json()["application_credential"]

    async def token(self, credential: Any) -> str:
        response = await self.c.authenticate(by_id(credential))
        assert response.status == 201, response.body
        return response.headers["x-subject-token"]


def by_id(credential: Any, **auth: Any) -> dict[str, Any]:
    return method({"id": credential["id"], "secret": credential["secret"]}, **auth)


def method(given: Any, **auth: Any) -> dict[str, Any]:
    identity = {"methods": ["application_credential"], "application_credential": given}
    return {"auth": {"identity": identity, **auth}}


def test_application_credential_is_created_shown_listed_and_deleted(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            o = await Owner(c).log_in()
            created = await o.create(description="d", expires_at="2099-01-02T03:04:05")
            secret = created.pop("secret")
            assert len(secret) > 80
            roles = {role: await c.ident("role", role) for role in ("member", "reader")}
            assert created == {
                "id": created["id"],
                "name": "ci",
                "description": "d",
                "user_id": o.user_id,
                "project_id": o.project_id,
                "system": None,
                "expires_at": "2099-01-02T03:04:05.000000",
                "unrestricted": False,
                "roles": [{"id": roles[name], "name": name, "domain_id": None} for name in ("member", "reader")],
                "links": {"self": f"http://cloud.test:1234/identity{o.path}/{created['id']}"},
            }
            one = f"{o.path}/{created['id']}"
            for token in (o.demo, o.admin):
                assert (await c.ok("GET", one, token))["application_credential"] == created
                assert (await c.ok("GET", o.path, token))["application_credentials"] == [created]
            assert (await c.ok("GET", f"{o.path}?name=other", o.demo))["application_credentials"] == []
            hashes = await c.services.db.fetch_value("SELECT secret_hash FROM application_credentials")
            assert hashes.startswith("$scrypt$")
            duplicate = await o.post()
            assert (duplicate.status, "ci" in duplicate.json()["error"]["message"]) == (409, True)
            manager = await c.login("demo-manager")
            for verb, path in (("GET", o.path), ("GET", one), ("DELETE", one), ("GET", f"{o.path}/none")):
                assert (await c.call(verb, path, manager)).status == 403
            await c.ok("DELETE", one, o.demo)
            assert (await c.call("GET", one, o.demo)).status == 404
            of_admin = await c.ident("user", "admin")
            other = await o.create(name="other")
            wrong = f"/v3/users/{of_admin}/application_credentials/{other['id']}"
            assert (await c.call("GET", wrong, o.admin)).status == 404
            await c.ok("DELETE", f"{o.path}/{other['id']}", o.admin)

    run(scenario())


def test_invalid_application_credentials_are_refused(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            o = await Owner(c).log_in()
            rule = {"service": "compute", "method": "GET", "path": "/v2.1/servers"}
            member = await c.ident("role", "member")
            for values, status, text in (
                ({"roles": [{"name": "admin"}]}, 400, "roles: the token does not have the role admin"),
                ({"roles": [{"id": "none"}]}, 400, "roles: the token does not have the role none"),
                ({"roles": [{"id": member, "name": "reader"}]}, 400, f"does not have the role {member}"),
                ({"expires_at": "2001-01-01T00:00:00"}, 400, "expires_at"),
                ({"expires_at": "soon"}, 400, "expires_at"),
                ({"secret": ""}, 400, "secret"),
                ({"project_id": "other"}, 400, "project_id"),
                ({"color": "red"}, 400, "color"),
                ({"access_rules": [{**rule, "method": "LIST"}]}, 400, "method"),
                ({"access_rules": [{**rule, "path": "v2.1"}]}, 400, "path"),
                ({"access_rules": [{"method": "GET", "path": "/"}]}, 400, "access_rules"),
                ({"access_rules": [{"id": "none"}]}, 404, "access rule"),
            ):
                response = await o.post(**values)
                assert (response.status, text in response.json()["error"]["message"]) == (status, True), response.body
            assert (await o.post(o.admin)).status == 403, "administrators create none for others"
            unscoped = await c.login("demo", "unscoped")
            assert (await o.post(unscoped)).status == 403
            assert await c.services.db.fetch_value("SELECT count(*) FROM application_credentials") == 0

    run(scenario())


def test_login_by_id_or_by_name_and_user(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            o = await Owner(c).log_in()
            await c.grant(o.admin, o.user_id, "demo", "manager")
            made = await o.create(await c.login("demo"), secret="chosen", roles=[{"name": "member"}])
            assert made["secret"] == "chosen"
            by_user = {"name": "ci", "secret": "chosen"}
            for given in (
                {"id": made["id"], "secret": "chosen"},
                {**by_user, "user": {"id": o.user_id}},
                {**by_user, "user": {"name": "demo", "domain": {"id": "default"}}},
            ):
                response = await c.authenticate(method(given))
                assert response.status == 201, response.body
                shown = response.json()["token"]
                assert shown["methods"] == ["application_credential"]
                assert shown["application_credential"] == {"id": made["id"], "name": "ci", "restricted": True}
                assert (shown["user"]["id"], shown["project"]["id"]) == (o.user_id, o.project_id)
                assert [role["name"] for role in shown["roles"]] == ["member", "reader"]
            for given, status in (
                (by_user, 400),
                ({"secret": "chosen"}, 400),
                ({"id": made["id"]}, 400),
                ({"id": made["id"], "secret": "guess"}, 401),
                ({"id": "none", "secret": "chosen"}, 401),
                ({**by_user, "user": {"id": "none"}}, 401),
            ):
                response = await c.authenticate(method(given))
                assert response.status == status, response.body
                assert status != 401 or response.json() == REFUSED
            for scope in (project_scope("demo"), project_scope("service"), "unscoped", {"OS-TRUST:trust": {"id": "x"}}):
                assert (await c.authenticate(by_id(made, scope=scope))).status == 401, scope

    run(scenario())


def test_restricted_token_creates_nothing_that_outlives_it(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            o = await Owner(c).log_in()
            rule = {"service": "identity", "method": "POST", "path": "/v3/users/*/application_credentials"}
            made = [
                await o.create(),
                await o.create(name="wide", unrestricted=True),
                await o.create(name="ruled", unrestricted=True, access_rules=[rule]),
            ]
            restricted, unrestricted, ruled = [await o.token(each) for each in made]
            trust = {"trustor_user_id": o.user_id, "trustee_user_id": o.user_id, "impersonation": False}
            ec2 = f"/v3/users/{o.user_id}/credentials/OS-EC2"
            for token in (restricted, unrestricted):
                for verb, path, body in (
                    ("POST", "/v3/OS-TRUST/trusts", {"trust": trust}),
                    ("POST", ec2, {"tenant_id": o.project_id}),
                    ("GET", ec2, None),
                    ("GET", "/v3/credentials", None),
                    ("POST", "/v3/auth/tokens", token_auth(token)),
                    ("POST", "/v3/auth/tokens", token_auth(token, project_scope("demo"))),
                ):
                    assert (await c.call(verb, path, token, body)).status == 403, (verb, path)
            for token in (restricted, ruled):
                assert (await o.post(token, "new")).status == 403
            assert len((await c.ok("GET", o.path, restricted))["application_credentials"]) == 3
            assert (await c.call("DELETE", f"{o.path}/{made[0]['id']}", restricted)).status == 403
            assert (await o.create(unrestricted, "new"))["name"] == "new"
            await c.ok("DELETE", f"{o.path}/{made[0]['id']}", unrestricted)
            assert not await c.works(restricted)

    run(scenario())


@pytest.mark.parametrize("event", ["credential", "user", "project", "roles", "disabled", "password"])
def test_token_ends_with_what_the_credential_needs(database_url: str, tmp_path: Path, event: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            o = await Owner(c).log_in()
            rule = {"service": "identity", "method": "GET", "path": "/v3/auth/projects"}
            made = await o.create(access_rules=[rule])
            token = await o.token(made)
            assert await c.works(token)
            user = f"/v3/users/{o.user_id}"
            deleted = {"credential": f"{o.path}/{made['id']}", "user": user, "project": f"/v3/projects/{o.project_id}"}
            if event in deleted:
                await c.ok("DELETE", deleted[event], o.admin)
            elif event == "roles":
                await c.grant(o.admin, o.user_id, "demo", "member", "DELETE")
            elif event == "disabled":
                await c.ok("PATCH", user, o.admin, {"user": {"enabled": False}})
            else:
                await c.ok("PATCH", user, o.admin, {"user": {"password": "new"}})
            assert not await c.works(token)
            again = await c.authenticate(by_id(made))
            # The secret does not depend on the password.
            assert again.status == (201 if event == "password" else 401)
            if event == "disabled":
                await c.ok("PATCH", user, o.admin, {"user": {"enabled": True}})
                assert not await c.works(token)
                assert await c.works(await o.token(made))

    run(scenario())


def test_token_has_those_roles_of_the_credential_that_are_left(database_url: str, tmp_path: Path) -> None:
    """As in Keystone, a lost role ends the token only if no other is left."""

    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            o = await Owner(c).log_in()
            await c.grant(o.admin, o.user_id, "demo", "manager")
            made = await o.create(await c.login("demo"))
            token = await o.token(made)
            await c.grant(o.admin, o.user_id, "demo", "admin")
            found = await c.tokens.validate(token)
            assert found is not None
            assert found.roles == {"manager", "member", "reader"}, "not admin"
            await c.grant(o.admin, o.user_id, "demo", "admin", "DELETE")
            await c.grant(o.admin, o.user_id, "demo", "manager", "DELETE")
            found = await c.tokens.validate(token)
            assert found is not None
            assert found.roles == {"member", "reader"}

    run(scenario())


def test_expired_credential_gives_no_tokens(sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url, tmp_path) as c:
            o = await Owner(c).log_in()
            start = clock.now()
            made = await o.create(expires_at=clock.iso_micro(start + 600))
            response = await c.authenticate(by_id(made))
            assert response.json()["token"]["expires_at"] == made["expires_at"] + "Z"
            token = response.headers["x-subject-token"]
            monkeypatch.setattr(clock, "now", lambda: start + 601)
            assert not await c.works(token)
            assert (await c.authenticate(by_id(made))).json() == REFUSED

    run(scenario())


def test_guesses_of_secrets_are_slowed_down_and_recorded(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passwords, "LOG_N", 4)

    async def scenario() -> None:
        async with cloud(sqlite_url, tmp_path) as c:
            o = await Owner(c).log_in()
            made = await o.create(secret="the secret")
            c.caller = InProcess(from_client(c.app), "/identity")
            with recorded_events(c.services) as events:
                guesses = [await c.authenticate(by_id({**made, "secret": "a guess"})) for _ in range(12)]
                assert [guess.status for guess in guesses] == [401] * 10 + [429] * 2
                assert (await c.authenticate(by_id(made))).status == 429, "this address guesses"
                assert (await c.authenticate(by_id({"id": "none", "secret": "a guess"}))).json() == REFUSED
            first = events[0]
            assert (first["action"], first["outcome"]) == ("authenticate", "failure")
            assert first["reason"] == {"code": 401, "text": "wrong secret"}
            assert first["initiator"]["id"] == o.user_id
            assert first["initiator"]["application_credential_id"] == made["id"]
            assert events[-1]["reason"]["text"] == "unknown application credential"
            assert "guess" not in str(events)

    run(scenario())


def test_audit_log_names_the_credential(sqlite_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url, tmp_path) as c:
            o = await Owner(c).log_in()
            made = await o.create(unrestricted=True)
            c.caller = InProcess(from_client(c.app), "/identity")
            with recorded_events(c.services) as events:
                token = await o.token(made)
                second = await o.create(token, "second")
            for event in events:
                assert event["initiator"]["application_credential_id"] == made["id"]
            assert events[1]["target"]["id"] == second["id"]
            assert made["secret"] not in str(events)
            assert second["secret"] not in str(events)

    run(scenario())
