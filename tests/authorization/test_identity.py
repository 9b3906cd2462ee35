"""Who may call the routes of the Identity API."""

from __future__ import annotations

import hmac
from base64 import b64encode
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest

from kilonova.http.client import ClientResponse
from kilonova.identity import build, passwords
from kilonova.identity.credentials import ec2_id
from kilonova.identity.resources import new_id
from kilonova.policy.identity import RULES
from kilonova.store.insert import insert_row
from tests.authorization.support import Comparison, Part, check_readers_write_nothing, check_rules
from tests.identity.support import SYSTEM, Cloud, password_auth, project_scope
from tests.identity.support import cloud as identity_cloud
from tests.identity.test_ec2_tokens import new_keys, signed
from tests.identity.test_limits import create
from tests.support import run

# Nothing of this kind exists.
MISSING = {key for key in build().routes if "OS-FEDERATION" in key or key.endswith("/config")}
MEMBERS = [key for key in build().routes if "/groups/{group_id}/users" in key]
USER_GRANTS = [key for key in build().routes if "{user_id}/roles" in key]
NAMES = {
    "reader": "demo-reader",
    "member": "demo",
    "manager": "demo-manager",
    "project admin": "demo-admin",
    "system reader": "auditor",
    "system admin": "admin",
    "service": "a-service",
    "domain reader": "domain-reader",
    "domain manager": "domain-manager",
}
DOMAIN = {"domain": {"id": "default"}}


async def create_callers(c: Cloud, admin: str) -> dict[str, tuple[str, str]]:
    """Token and user id of each caller."""
    for name, place, role in (
        ("auditor", "system", "reader"),
        ("domain-reader", "domains/default", "reader"),
        ("domain-manager", "domains/default", "manager"),
    ):
        user_id, role_id = await c.new_user(admin, name), await c.ident("role", role)
        await c.ok("PUT", f"/v3/{place}/users/{user_id}/roles/{role_id}", admin, status=204)
    await c.new_user(admin, "a-service", "service", "service")
    scopes = {
        "system reader": SYSTEM,
        "system admin": SYSTEM,
        "service": project_scope("service"),
        "domain reader": DOMAIN,
        "domain manager": DOMAIN,
    }
    callers = {
        caller: (await c.login(name, scopes.get(caller), f"secret of {name}"), await c.ident("user", name))
        for caller, name in NAMES.items()
    }
    member = callers["member"]
    return {
        **callers,
        "trust": (await _token_of_trust(c, *member), member[1]),
        "application credential": (await _token_of_application_credential(c, *member), member[1]),
    }


async def _token_of_trust(c: Cloud, member: str, member_id: str) -> str:
    """A token of a trust from the member to another user."""
    values = {"project_id": await c.ident("project", "demo"), "impersonation": True, "roles": [{"name": "member"}]}
    users = {"trustor_user_id": member_id, "trustee_user_id": await c.ident("user", "a-service")}
    trust_id = (await c.ok("POST", "/v3/OS-TRUST/trusts", member, {"trust": {**values, **users}}))["trust"]["id"]
    scope = {"OS-TRUST:trust": {"id": trust_id}}
    return (await c.authenticate(password_auth("a-service", "secret of a-service", scope))).headers["x-subject-token"]


async def _token_of_application_credential(c: Cloud, member: str, member_id: str) -> str:
    path = f"/v3/users/{member_id}/application_credentials"
    made = await c.ok("POST", path, member, {"application_credential": {"name": "of the caller"}})
    given = {key: made["application_credential"][key] for key in ("id", "secret")}
    identity = {"methods": ["application_credential"], "application_credential": given}
    return (await c.authenticate({"auth": {"identity": identity}})).headers["x-subject-token"]


# Placeholders of the caller's own objects, in paths.
MINE = {
    "OS-EC2/credential_id": "MY-KEY",
    "credentials/credential_id": "MY-CREDENTIAL",
    "trust_id": "MY-TRUST",
    "application_credential_id": "MY-APPLICATION-CREDENTIAL",
    "access_rule_id": "MY-RULE",
}


async def create_credentials(c: Cloud, admin: str, user_id: str, project_id: str) -> dict[str, str]:
    """A credential of the user, by its access key and its id, and a trust, application credential and access rule."""
    access = (await new_keys(c, admin, user_id, project_id))["access"]
    trust = {
        **dict.fromkeys(("trustor_user_id", "trustee_user_id"), user_id),
        "id": new_id(),
        "impersonation": True,
        "role_ids": orjson.dumps([await c.ident("role", "member")]).decode(),
        "redelegation_count": 0,
        "extra": "{}",
    }
    credential = {
        "id": new_id(),
        "user_id": user_id,
        "project_id": project_id,
        "secret_hash": "",
        "role_ids": "[]",
        "unrestricted": False,
        "has_access_rules": False,
    }
    rule = {"id": new_id(), "user_id": user_id, "service": "compute", "method": "GET", "path": f"/{new_id()}"}
    async with c.services.db.transaction() as tx:
        await insert_row(tx, "trusts", trust)
        await insert_row(tx, "application_credentials", {**credential, "name": credential["id"]})
        await insert_row(tx, "access_rules", rule)
    return {
        "application_credential_id": credential["id"],
        "access_rule_id": rule["id"],
        "OS-EC2/credential_id": access,
        "credentials/credential_id": ec2_id(access),
        "trust_id": trust["id"],
    }


async def signed_requests(c: Cloud, admin: str, user_id: str, project_id: str) -> dict[str, Any]:
    """Bodies of requests for tokens, signed with a credential of the user."""
    keys = await new_keys(c, admin, user_id, project_id)
    signature = b64encode(hmac.digest(keys["secret"].encode(), b"text", "sha1")).decode()
    s3_request = {"access": keys["access"], "token": b64encode(b"text").decode(), "signature": signature}
    return {"POST /v3/ec2tokens": signed(keys, 4), "POST /v3/s3tokens": {"credentials": s3_request}}


async def create_objects(
    c: Cloud, admin: str, project_id: str, domain_id: str, user_id: str, members: Collection[str]
) -> dict[str, Any]:
    """The user and a group have a role on the system, the project and the domain. Another group has the members."""

    async def make(noun: str, **values: Any) -> str:
        return str((await c.ok("POST", f"/v3/{noun}s", admin, {noun: values}))[noun]["id"])

    # A role that managers of a domain may assign.
    role, implied = await c.ident("role", "member"), await make("role", name=f"implied-{project_id}")
    await c.ok("PUT", f"/v3/roles/{role}/implies/{implied}", admin, status=201)
    await c.ok("PUT", f"/v3/projects/{project_id}/tags/tag", admin, status=201)
    group, crew = [await make("group", name=name, domain_id=domain_id) for name in ("group", "crew")]
    for member in members:
        await c.ok("PUT", f"/v3/groups/{crew}/users/{member}", admin, status=204)
    for actor in (f"users/{user_id}", f"groups/{group}"):
        for scope in (f"projects/{project_id}", f"domains/{domain_id}", "system"):
            await c.ok("PUT", f"/v3/{scope}/{actor}/roles/{role}", admin, status=204)
        for scope in (f"projects/{project_id}", f"domains/{domain_id}"):
            inherited = f"/v3/OS-INHERIT/{scope}/{actor}/roles/{role}/inherited_to_projects"
            await c.ok("PUT", inherited, admin, status=204)
    service, region = await make("service", type="t"), await make("region")
    values = {"service_id": service, "interface": "public", "url": "http://x"}
    endpoint = await make("endpoint", **values)
    policy = {"policy": {"type": "t", "blob": "b"}}
    added = {"endpoint_group": {"name": "g", "filters": {}}}
    filters = "/v3/OS-EP-FILTER"
    endpoint_group = (await c.ok("POST", f"{filters}/endpoint_groups", admin, added))["endpoint_group"]["id"]
    for path in (
        f"endpoint_groups/{endpoint_group}/projects/{project_id}",
        f"projects/{project_id}/endpoints/{endpoint}",
    ):
        await c.ok("PUT", f"{filters}/{path}", admin, status=204)
    limited = await make("service", type="limited")
    of = {"service_id": limited, "resource_name": "cores"}
    registered = {**of, "default_limit": 1}
    _, unused = await create(c, admin, "registered_limit", registered, {**registered, "resource_name": "ram"})
    (limit,) = await create(c, admin, "limit", {**of, "project_id": project_id, "resource_limit": 2})
    return {
        "limit_id": limit["id"],
        "registered_limit_id": unused["id"],
        "limited": limited,
        "domain_id": domain_id,
        "project_id": project_id,
        "group_id": group,
        "crew": crew,
        "role_id": role,
        "implied_id": implied,
        "service_id": service,
        "endpoint_id": endpoint,
        "endpoint_group_id": endpoint_group,
        "policy_id": (await c.ok("POST", "/v3/policies", admin, policy))["policy"]["id"],
        "region_id": region,
        "tag": "tag",
    }


def parts(project_id: str, domain_role: str) -> list[Part]:
    """Requests about role assignments of a tree of projects, about roles of domains, and about own trusts."""
    of_domain = {"name": "x", "domain_id": "default"}
    names = {"role_id": domain_role}
    return [
        Part(
            "identity:list_role_assignments_for_tree",
            "GET /v3/role_assignments",
            query=f"?include_subtree&scope.project.id={project_id}",
        ),
        *(
            Part(f"identity:list_trusts_for_{who}", "GET /v3/OS-TRUST/trusts", query=f"?{who}_user_id=OWN")
            for who in ("trustor", "trustee")
        ),
        Part("identity:list_domain_roles", "GET /v3/roles", query="?domain_id=default"),
        Part("identity:create_domain_role", "POST /v3/roles", {"role": of_domain}),
        Part("identity:get_domain_role", "GET /v3/roles/{role_id}", names=names),
        Part("identity:update_domain_role", "PATCH /v3/roles/{role_id}", {"role": {"name": "y"}}, names=names),
        Part("identity:delete_domain_role", "DELETE /v3/roles/{role_id}", names=names),
    ]


def bodies(names: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **names["signed"],
        "POST /v3/credentials": {"credential": {"type": "t", "blob": "b", "user_id": names["user_id"]}},
        "POST /v3/users/{user_id}/credentials/OS-EC2": {"tenant_id": names["project_id"]},
        "POST /v3/users/{user_id}/application_credentials": {"application_credential": {"name": "new"}},
        "POST /v3/OS-TRUST/trusts": {
            "trust": {
                **dict.fromkeys(("trustor_user_id", "trustee_user_id"), names["user_id"]),
                "impersonation": False,
            }
        },
        "POST /v3/auth/tokens": password_auth("admin", scope=project_scope("admin")),
        "POST /v3/users/{user_id}/password": {"user": {"password": "y", "original_password": "x"}},
        "POST /v3/roles": {"role": {"name": "new"}},
        "POST /v3/endpoints": {
            "endpoint": {"service_id": names["service_id"], "interface": "admin", "url": "http://y"}
        },
        "POST /v3/limits": {
            "limits": [
                {
                    "service_id": names["limited"],
                    "resource_name": "cores",
                    "resource_limit": 3,
                    "domain_id": names["domain_id"],
                }
            ]
        },
        "PATCH /v3/limits/{limit_id}": {"limit": {"resource_limit": 4}},
        "PATCH /v3/endpoints/{endpoint_id}": {"endpoint": {"enabled": False}},
        "PUT /v3/regions/{region_id}": {"region": {}},
    }


def test_answers_match_the_page(sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passwords, "LOG_N", 4)

    async def scenario() -> None:
        async with identity_cloud(sqlite_url, tmp_path) as c:
            admin = await c.login("admin")
            callers = await create_callers(c, admin)
            domain = (await c.ok("POST", "/v3/domains", admin, {"domain": {"name": "d"}}))["domain"]["id"]
            there = {"project": {"name": "p", "domain_id": domain}}
            project = (await c.ok("POST", "/v3/projects", admin, there))["project"]["id"]
            disabled = {"name": "disabled", "enabled": False}
            disabled_id = (await c.ok("POST", "/v3/domains", admin, {"domain": disabled}))["domain"]["id"]
            role = {"role": {"name": "of domain", "domain_id": "default"}}
            domain_role = (await c.ok("POST", "/v3/roles", admin, role))["role"]["id"]
            body = {"user": {"name": "somebody", "domain_id": domain, "password": "secret of somebody"}}
            user = (await c.ok("POST", "/v3/users", admin, body))["user"]["id"]
            fellow, demo = await c.new_user(admin, "fellow"), await c.ident("project", "demo")
            own = await create_objects(c, admin, demo, "default", fellow, [each for _, each in callers.values()])
            other = await create_objects(c, admin, project, domain, user, [user])
            login = {"methods": ["password"], "password": {"user": {"id": user, "password": "secret of somebody"}}}
            issued = await c.authenticate({"auth": {"identity": login, "scope": {"project": {"id": project}}}})
            theirs = issued.headers["x-subject-token"]

            own["signed"] = other["signed"] = await signed_requests(c, admin, fellow, demo)
            other |= await create_credentials(c, admin, user, project)
            keys = {caller: await create_credentials(c, admin, each, demo) for caller, (_, each) in callers.items()}

            async def call(
                caller: str | None, method: str, path: str, version: str | None, body: Any
            ) -> ClientResponse:
                """The own user, the own token and the own credentials are those of the caller."""
                token, user_id = callers[caller] if caller else (None, "nobody")
                for name, value in keys.get(caller or "", {}).items():
                    path = path.replace(MINE[name], value)
                if (method, path) == ("POST", "/v3/credentials"):
                    owner = user if body["credential"]["user_id"] == "THEIRS" else user_id
                    body = {"credential": {**body["credential"], "user_id": owner}}
                if (method, path) == ("POST", "/v3/OS-TRUST/trusts"):
                    owner = user if body["trust"]["trustor_user_id"] == "THEIRS" else user_id
                    users = dict.fromkeys(("trustor_user_id", "trustee_user_id"), owner)
                    body = {"trust": {**body["trust"], **users}}
                subject = theirs if "THEIRS" in path else token or "nobody"
                if caller and path.endswith("/password"):
                    body = {"user": {"password": "y", "original_password": f"secret of {NAMES.get(caller, 'demo')}"}}
                path = path.replace("OWN", user_id).replace("?THEIRS", "").replace("THEIRS", user)
                return await c.call(method, path, token, body, X_Subject_Token=subject)

            compared = Comparison(
                build(),
                c.services,
                call,
                {**own, **MINE, "user_id": "OWN"},
                {**other, "user_id": "THEIRS"},
                bodies,
                missing=MISSING,
                parts=parts(demo, domain_role),
                special={
                    **dict.fromkeys(MEMBERS, ({"group_id": own["crew"]}, {"group_id": other["crew"]})),
                    **dict.fromkeys(USER_GRANTS, ({"user_id": fellow}, {"user_id": "THEIRS"})),
                    "DELETE /v3/domains/{domain_id}": ({"domain_id": disabled_id}, {"domain_id": disabled_id}),
                },
                other_queries={f"{method} /v3/auth/tokens": "?THEIRS" for method in ("GET", "HEAD", "DELETE")},
            )
            await compared.run()
            assert not compared.wrong, "\n".join(compared.wrong)
            check_rules(compared, RULES, {})

    run(scenario())


def test_readers_write_nothing() -> None:
    check_readers_write_nothing(
        build(),
        {
            "DELETE /v3/auth/tokens": "everybody may revoke the own token",
            "POST /v3/users/{user_id}/password": "everybody may change the own password",
            **dict.fromkeys(
                (
                    "POST /v3/credentials",
                    "PATCH /v3/credentials/{credential_id}",
                    "DELETE /v3/credentials/{credential_id}",
                ),
                "everybody may store own credentials",
            ),
            **dict.fromkeys(
                (
                    "POST /v3/users/{user_id}/application_credentials",
                    "DELETE /v3/users/{user_id}/application_credentials/{application_credential_id}",
                    "DELETE /v3/users/{user_id}/access_rules/{access_rule_id}",
                ),
                "everybody may have own application credentials",
            ),
            "POST /v3/OS-TRUST/trusts": "everybody may pass on own roles",
            "DELETE /v3/OS-TRUST/trusts/{trust_id}": "everybody may delete own trusts",
        },
    )
