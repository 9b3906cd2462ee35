"""Trusts: lifecycle, tokens, redelegation, and what ends them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from kilonova import clock
from kilonova.http.client import ClientResponse, InProcess
from tests.identity.support import REFUSED, Cloud, cloud, password_auth, project_scope, token_auth
from tests.support import run
from tests.support.audit import from_client, recorded_events

TRUSTS = "/v3/OS-TRUST/trusts"


class Users:
    """The trustor is demo; the trustee is eve, who has no role in the project demo."""

    def __init__(self, c: Cloud) -> None:
        self.c = c

    async def create(self) -> Users:
        self.admin, self.demo = await self.c.login("admin"), await self.c.login("demo")
        self.demo_id = await self.c.ident("user", "demo")
        self.project_id = await self.c.ident("project", "demo")
        self.eve_id = await self.c.new_user(self.admin, "eve", "service", "reader")
        self.eve = await self.c.login("eve", project_scope("service"), "secret of eve")
        return self

    def body(self, **values: Any) -> Any:
        trust = {
            "trustor_user_id": self.demo_id,
            "trustee_user_id": self.eve_id,
            "project_id": self.project_id,
            "impersonation": True,
            "roles": [{"name": "member"}],
        }
        return {"trust": {**trust, **values}}

    async def trust(self, token: str | None = None, **values: Any) -> Any:
        return (await self.c.ok("POST", TRUSTS, token or self.demo, self.body(**values)))["trust"]

    async def refusal(self, token: str | None = None, **values: Any) -> ClientResponse:
        return await self.c.call("POST", TRUSTS, token or self.demo, self.body(**values))

    async def log_in(self, trust_id: str, name: str = "eve") -> ClientResponse:
        return await self.c.authenticate(trust_auth(trust_id, name))

    async def token(self, trust_id: str, name: str = "eve") -> str:
        response = await self.log_in(trust_id, name)
        assert response.status == 201, response.body
        return response.headers["x-subject-token"]


def trust_auth(trust_id: str, name: str = "eve") -> dict[str, Any]:
    return password_auth(name, f"secret of {name}", {"OS-TRUST:trust": {"id": trust_id}})


def test_trust_is_created_shown_listed_and_deleted(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            u = await Users(c).create()
            created = await u.trust(note="for backups", expires_at="2099-01-02T03:04:05Z")
            path = f"{TRUSTS}/{created['id']}"
            url = f"http://cloud.test:1234/identity{path}"
            member = await c.ident("role", "member")
            assert [role["name"] for role in created.pop("roles")] == ["member"]
            assert created == {
                "id": created["id"],
                "trustor_user_id": u.demo_id,
                "trustee_user_id": u.eve_id,
                "project_id": u.project_id,
                "impersonation": True,
                "expires_at": "2099-01-02T03:04:05.000000Z",
                "remaining_uses": None,
                "deleted_at": None,
                "redelegation_count": 0,
                "redelegated_trust_id": None,
                "note": "for backups",
                "roles_links": {"self": f"{url}/roles", "previous": None, "next": None},
                "links": {"self": url},
            }
            for token in (u.demo, u.eve, u.admin):
                shown = (await c.ok("GET", path, token))["trust"]
                assert {**shown, "roles": None} == {**created, "roles": None}
                roles = (await c.ok("GET", f"{path}/roles", token))["roles"]
                assert [(role["id"], role["name"]) for role in roles] == [(member, "member")]
                assert (await c.ok("GET", f"{path}/roles/{member}", token))["role"]["name"] == "member"
                assert (await c.call("HEAD", path, token)).status == 200
                assert (await c.call("HEAD", f"{path}/roles/{member}", token)).status == 200
            reader = await c.ident("role", "reader")
            assert (await c.call("GET", f"{path}/roles/{reader}", u.demo)).status == 404
            assert (await c.call("DELETE", path, u.eve)).status == 403
            manager = await c.login("demo-manager")
            hidden = [await c.call(verb, path, manager) for verb in ("GET", "DELETE")]
            await c.ok("DELETE", path, u.demo)
            for token in (u.demo, u.eve, u.admin, manager):
                missing = [await c.call(verb, path, token) for verb in ("GET", "DELETE")]
                assert [answer.status for answer in missing] == [404, 404]
            assert [answer.body for answer in hidden] == [answer.body for answer in missing]

    run(scenario())


def test_lists_of_trusts(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            u = await Users(c).create()
            of_demo = (await u.trust())["id"]
            body = {"trustor_user_id": u.eve_id, "trustee_user_id": u.demo_id, "project_id": None, "roles": []}
            of_eve = (await u.trust(u.eve, **body))["id"]

            async def listed(token: str, query: str = "") -> set[str] | int:
                response = await c.call("GET", f"{TRUSTS}{query}", token)
                return (
                    {trust["id"] for trust in response.json()["trusts"]} if response.status == 200 else response.status
                )

            assert await listed(u.admin) == {of_demo, of_eve}
            assert await listed(u.demo) == 403
            assert await listed(u.demo, f"?trustor_user_id={u.demo_id}") == {of_demo}
            assert await listed(u.demo, f"?trustee_user_id={u.demo_id}") == {of_eve}
            assert await listed(u.demo, f"?trustor_user_id={u.eve_id}") == 403
            assert await listed(u.demo, f"?trustor_user_id={u.eve_id}&trustee_user_id={u.demo_id}") == {of_eve}
            assert await listed(u.demo, f"?trustor_user_id={u.demo_id}&trustee_user_id={u.eve_id}") == {of_demo}

    run(scenario())


def test_invalid_trusts_are_refused(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            u = await Users(c).create()
            service, member = await c.ident("project", "service"), await c.ident("role", "member")
            for values, status, text in (
                ({"trustor_user_id": u.eve_id}, 403, "identity:create_trust"),
                ({"trustee_user_id": "none"}, 404, "Could not find user: none."),
                ({"roles": [{"name": "admin"}]}, 404, "Could not find role: admin."),
                ({"roles": [{"id": "none"}]}, 404, "Could not find role: none."),
                ({"roles": [{"id": member, "name": "reader"}]}, 404, f"Could not find role: {member}."),
                ({"roles": [{}]}, 400, "roles"),
                ({"roles": []}, 403, "at least one role"),
                ({"project_id": service}, 404, "Could not find role: member."),
                ({"project_id": None}, 400, "project_id"),
                ({"impersonation": None}, 400, "impersonation"),
                ({"expires_at": "2001-01-01T00:00:00Z"}, 400, "expires_at: a time in the future"),
                ({"expires_at": "soon"}, 400, "expires_at: an ISO 8601 time"),
                ({"remaining_uses": 0}, 400, "remaining_uses"),
                ({"remaining_uses": 2, "allow_redelegation": True}, 400, "remaining_uses"),
                ({"redelegation_count": 4, "allow_redelegation": True}, 403, "redelegation_count: at most 3"),
            ):
                response = await u.refusal(**values)
                assert (response.status, text in response.json()["error"]["message"]) == (status, True), response.body
            assert (await c.ok("GET", TRUSTS, u.admin))["trusts"] == []

    run(scenario())


@pytest.mark.parametrize("impersonation", [True, False])
def test_token_of_trust_has_the_roles_of_the_trust(database_url: str, tmp_path: Path, impersonation: bool) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            u = await Users(c).create()
            await c.grant(u.admin, u.demo_id, "demo", "manager")
            trust = await u.trust(impersonation=impersonation, expires_at="2099-01-01T00:00:00Z")
            response = await u.log_in(trust["id"])
            shown = response.json()["token"]
            assert shown["OS-TRUST:trust"] == {
                "id": trust["id"],
                "impersonation": impersonation,
                "trustor_user": {"id": u.demo_id},
                "trustee_user": {"id": u.eve_id},
            }
            assert shown["user"]["id"] == (u.demo_id if impersonation else u.eve_id)
            assert shown["project"]["id"] == u.project_id
            assert [role["name"] for role in shown["roles"]] == ["member", "reader"], "implied, but not manager"
            token = response.headers["x-subject-token"]
            validated = await c.call("GET", "/v3/auth/tokens?nocatalog", u.admin, X_Subject_Token=token)
            assert validated.json()["token"]["OS-TRUST:trust"] == shown["OS-TRUST:trust"]
            # A token of the trustee gets one too.
            response = await c.authenticate(token_auth(u.eve, {"OS-TRUST:trust": {"id": trust["id"]}}))
            assert response.json()["token"]["OS-TRUST:trust"]["id"] == trust["id"]

    run(scenario())


def test_trust_without_project_gives_unscoped_tokens(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            u = await Users(c).create()
            trust = await u.trust(project_id=None, roles=[])
            shown = (await u.log_in(trust["id"])).json()["token"]
            assert shown["user"]["id"] == u.demo_id
            assert "roles" not in shown

    run(scenario())


def test_only_the_trustee_gets_tokens(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            u = await Users(c).create()
            trust = await u.trust()
            await c.new_user(u.admin, "other")
            for name, trust_id in (("demo", trust["id"]), ("other", trust["id"]), ("eve", "none")):
                assert (await u.log_in(trust_id, name)).json() == REFUSED
            both = trust_auth(trust["id"])
            both["auth"]["scope"].update(project_scope("service"))
            assert (await c.authenticate(both)).status == 400

    run(scenario())


def test_token_of_trust_gives_no_further_rights(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            u = await Users(c).create()
            await c.grant(u.admin, u.demo_id, "service", "admin")
            trust = await u.trust()
            token = await u.token(trust["id"])
            of_trust = {"OS-TRUST:trust": {"id": trust["id"]}}
            for scope in (project_scope("service"), project_scope("demo"), "unscoped", of_trust, None):
                assert (await c.authenticate(token_auth(token, scope))).status == 403, scope
            assert (await u.refusal(token)).status == 403
            ec2 = f"/v3/users/{u.demo_id}/credentials/OS-EC2"
            await c.ok("POST", ec2, u.demo, {"tenant_id": u.project_id})
            for method, path, body in (
                ("POST", ec2, {"tenant_id": u.project_id}),
                ("GET", ec2, None),
                ("GET", "/v3/credentials", None),
                ("POST", "/v3/credentials", {"credential": {"type": "totp", "blob": "x"}}),
            ):
                assert (await c.call(method, path, token, body)).status == 403, (method, path)

    run(scenario())


def test_uses_of_trust_are_counted(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            u = await Users(c).create()
            trust = await u.trust(remaining_uses=2)
            path = f"{TRUSTS}/{trust['id']}"
            assert (await u.log_in(trust["id"], "demo")).status == 401
            first = await u.token(trust["id"])
            assert (await c.ok("GET", path, u.demo))["trust"]["remaining_uses"] == 1
            second = await u.token(trust["id"])
            assert (await u.log_in(trust["id"])).json() == REFUSED
            assert await c.works(first)
            assert await c.works(second)
            assert (await c.call("GET", path, u.admin)).status == 404
            assert (await c.ok("GET", TRUSTS, u.admin))["trusts"] == []

    run(scenario())


def test_last_use_is_given_once(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            u = await Users(c).create()
            trust = await u.trust(remaining_uses=1)
            logins = await asyncio.gather(*(u.log_in(trust["id"]) for _ in range(8)))
            assert sorted(login.status for login in logins) == [201, *[401] * 7]
            (token,) = [login.headers["x-subject-token"] for login in logins if login.status == 201]
            assert await c.works(token)

    run(scenario())


def test_trust_is_passed_on(database_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            u = await Users(c).create()
            await c.grant(u.admin, u.demo_id, "demo", "manager")
            third = await c.new_user(u.admin, "third")
            first = await u.trust(allow_redelegation=True, expires_at="2099-01-01T00:00:00Z")
            assert first["redelegation_count"] == 3
            token = await u.token(first["id"])
            for values, text in (
                ({"roles": [{"name": "manager"}]}, "roles"),
                ({"expires_at": "2099-01-02T00:00:00Z"}, "expires_at"),
                ({"remaining_uses": 1}, "remaining_uses"),
                ({"allow_redelegation": True, "redelegation_count": 3}, "redelegation_count"),
                ({"project_id": None, "roles": []}, "project_id"),
            ):
                refused = await u.refusal(token, trustee_user_id=third, **values)
                assert (refused.status, text in refused.json()["error"]["message"]) == (403, True), refused.body
            second = await u.trust(token, trustee_user_id=third, roles=[{"name": "reader"}])
            assert (second["redelegated_trust_id"], second["redelegation_count"]) == (first["id"], 0)
            assert second["expires_at"] == first["expires_at"]
            of_third = await u.token(second["id"], "third")
            found = await c.tokens.validate(of_third)
            assert found is not None
            assert (found.user_id, found.roles) == (u.demo_id, {"reader"})
            refused = await u.refusal(of_third, trustee_user_id=u.eve_id, roles=[{"name": "reader"}])
            assert (refused.status, "cannot be passed on" in refused.json()["error"]["message"]) == (403, True)
            await c.ok("DELETE", f"{TRUSTS}/{first['id']}", u.demo)
            assert not await c.works(of_third)
            assert (await c.call("GET", f"{TRUSTS}/{second['id']}", u.admin)).status == 404

    run(scenario())


def test_trust_without_impersonation_is_not_passed_on(sqlite_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url, tmp_path) as c:
            u = await Users(c).create()
            trust = await u.trust(allow_redelegation=True, impersonation=False)
            token = await u.token(trust["id"])
            for trustor in (u.demo_id, u.eve_id):
                assert (await u.refusal(token, trustor_user_id=trustor)).status == 403

    run(scenario())


async def _disable(u: Users, noun: str, item_id: str, enabled: bool) -> None:
    await u.c.ok("PATCH", f"/v3/{noun}s/{item_id}", u.admin, {noun: {"enabled": enabled}})


@pytest.mark.parametrize("event", ["role", "trustor", "trustee", "project", "passwords"])
def test_token_ends_with_what_the_trust_needs(database_url: str, tmp_path: Path, event: str) -> None:
    """It comes back with a role. What revokes tokens of a user revokes those of its trusts too; new ones are issued."""

    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            u = await Users(c).create()
            trust = await u.trust()
            token = await u.token(trust["id"])
            assert await c.works(token)
            if event == "role":
                await c.grant(u.admin, u.demo_id, "demo", "member", "DELETE")
                await c.grant(u.admin, u.demo_id, "demo", "reader")
                assert not await c.works(token)
                assert (await u.log_in(trust["id"])).status == 403
                await c.grant(u.admin, u.demo_id, "demo", "member")
                assert await c.works(token)
            elif event == "passwords":
                for user_id, name in ((u.demo_id, "demo"), (u.eve_id, "eve")):
                    token = await u.token(trust["id"])
                    body = {"user": {"password": f"secret of {name}"}}
                    await c.ok("PATCH", f"/v3/users/{user_id}", u.admin, body)
                    assert not await c.works(token), name
            else:
                noun, item_id = {
                    "trustor": ("user", u.demo_id),
                    "trustee": ("user", u.eve_id),
                    "project": ("project", u.project_id),
                }[event]
                await _disable(u, noun, item_id, False)
                assert not await c.works(token)
                assert (await u.log_in(trust["id"])).status == (401 if event == "trustee" else 403)
                await _disable(u, noun, item_id, True)
                assert not await c.works(token)
            assert await c.works(await u.token(trust["id"]))

    run(scenario())


@pytest.mark.parametrize("noun", ["trust", "trustor", "trustee", "project", "role"])
def test_deletion_ends_trust_and_token(database_url: str, tmp_path: Path, noun: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url, tmp_path) as c:
            u = await Users(c).create()
            trust = await u.trust()
            token = await u.token(trust["id"])
            path = {
                "trust": f"{TRUSTS}/{trust['id']}",
                "trustor": f"/v3/users/{u.demo_id}",
                "trustee": f"/v3/users/{u.eve_id}",
                "project": f"/v3/projects/{u.project_id}",
                "role": f"/v3/roles/{await c.ident('role', 'member')}",
            }[noun]
            await c.ok("DELETE", path, u.admin)
            assert not await c.works(token)
            assert (await u.log_in(trust["id"])).status == (403 if noun == "role" else 401)

    run(scenario())


def test_audit_log_names_the_trustee(sqlite_url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url, tmp_path) as c:
            u = await Users(c).create()
            trust = await u.trust()
            c.caller = InProcess(from_client(c.app), "/identity", "cloud.test:1234")
            with recorded_events(c.services) as events:
                token = await u.token(trust["id"])
                await c.ok("DELETE", f"{TRUSTS}/{trust['id']}", token)
                await u.log_in(trust["id"])
            for event in events[:2]:
                assert event["initiator"]["id"] == u.demo_id
                assert event["initiator"]["trust_id"] == trust["id"]
                assert event["initiator"]["trustee_user_id"] == u.eve_id
            assert events[2]["initiator"]["name"] == "eve"
            assert events[2]["reason"]["text"] == "unknown, expired or used up trust, or the user is not its trustee"

    run(scenario())


def test_token_of_trust_deletes_it(sqlite_url: str, tmp_path: Path) -> None:
    """Heat deletes a stack, and the trust for it, with a token of the trust."""

    async def scenario() -> None:
        async with cloud(sqlite_url, tmp_path) as c:
            u = await Users(c).create()
            trust = await u.trust()
            token = await u.token(trust["id"])
            await c.ok("DELETE", f"{TRUSTS}/{trust['id']}", token)
            assert not await c.works(token)

    run(scenario())


def test_expired_trust_gives_no_tokens(sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url, tmp_path) as c:
            u = await Users(c).create()
            start = clock.now()
            trust = await u.trust(expires_at=clock.iso_micro(start + 600))
            response = await u.log_in(trust["id"])
            assert response.json()["token"]["expires_at"] == trust["expires_at"]
            token = response.headers["x-subject-token"]
            monkeypatch.setattr(clock, "now", lambda: start + 601)
            assert not await c.works(token)
            assert (await u.log_in(trust["id"])).json() == REFUSED
            assert (await c.call("GET", f"{TRUSTS}/{trust['id']}", u.admin)).status == 404

    run(scenario())
