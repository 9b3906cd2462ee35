"""Routes of authentication: issue, validate and revoke tokens, and list the scopes of the own token."""

from __future__ import annotations

import math
import re
from typing import Any

from kilonova import clock
from kilonova.http import Context, Response
from kilonova.http.errors import BadRequest, Forbidden, NotFound, Unauthorized
from kilonova.identity.api import Json, api, link, list_links
from kilonova.identity.assigned_roles import accessible, effective_roles
from kilonova.identity.catalog import catalog_for
from kilonova.identity.domains import DOMAINS
from kilonova.identity.listing import flag
from kilonova.identity.login_methods import (
    DOMAIN_REFERENCE,
    METHOD_SCHEMAS,
    NAMED,
    STRING,
    ProvenUser,
    in_domain,
    prove,
)
from kilonova.identity.logins import LoginRefused, audited_refusals
from kilonova.identity.projects import PROJECTS
from kilonova.identity.resources import token_validator, write_transaction
from kilonova.identity.rights import find_trust
from kilonova.identity.schemas import BOOLEAN, QUERY_FLAG
from kilonova.identity.token import SYSTEM, UNSCOPED, Scope, Token
from kilonova.identity.token_provider import EXPIRED_WINDOW_SECONDS, revoke
from kilonova.store import Database, Row

UNSCOPED_WORD = "unscoped"
_TRUST = "OS-TRUST:trust"
_SCOPE: Json = {
    "type": "object",
    "properties": {
        "project": NAMED,
        "domain": DOMAIN_REFERENCE,
        "system": {"type": "object", "properties": {"all": BOOLEAN}, "required": ["all"]},
        "unscoped": {"type": "object"},
        _TRUST: {"type": "object", "properties": {"id": STRING}, "required": ["id"]},
    },
}
AUTHENTICATE: Json = {
    "type": "object",
    "properties": {
        "auth": {
            "type": "object",
            "properties": {
                "identity": {
                    "type": "object",
                    "properties": {
                        "methods": {"type": "array", "items": STRING, "minItems": 1, "maxItems": 8},
                        **METHOD_SCHEMAS,
                    },
                    "required": ["methods"],
                },
                "scope": {"anyOf": [{"const": UNSCOPED_WORD}, _SCOPE]},
            },
            "required": ["identity"],
        }
    },
    "required": ["auth"],
}


@api.route("POST", "/v3/auth/tokens", public=True, body=AUTHENTICATE, query={"nocatalog": QUERY_FLAG}, status=201)
async def authenticate(ctx: Context) -> Response:
    """Authenticate and get a token."""
    with audited_refusals(ctx):
        text, token = await _log_in(ctx, ctx.body["auth"])
    ctx.token = token
    return Response(await token_view(ctx, token), headers={"X-Subject-Token": text, "Vary": "X-Auth-Token"})


async def _log_in(ctx: Context, auth: Json) -> tuple[str, Token]:
    methods = auth["identity"]["methods"]
    proven = [await prove(ctx, method, auth["identity"]) for method in dict.fromkeys(methods)]
    if len({user.user_id for user in proven}) != 1:
        raise LoginRefused("the methods prove different users")
    if credential := next((user.application_credential for user in proven if user.application_credential), None):
        return await _issue_for_application_credential(ctx, auth, proven, credential)
    if _TRUST in _kinds(auth):
        return await _issue_for_trust(ctx, proven, auth["scope"][_TRUST]["id"], methods)
    scope, is_requested = await _scope(ctx.db, auth, proven)
    issued = await _issue(ctx, proven, scope, methods)
    if issued is None and not is_requested:
        issued = await _issue(ctx, proven, UNSCOPED, methods)
    if issued is None:
        raise LoginRefused("the user is disabled, has no role in the scope, or has just changed the password")
    return issued


def _kinds(auth: Json) -> list[str]:
    """The kind of the scope that the body requests; none if it requests no scope."""
    requested = auth.get("scope", UNSCOPED_WORD)
    if requested == UNSCOPED_WORD:
        return []
    kinds = [kind for kind in ("project", "domain", "system", "unscoped", _TRUST) if kind in requested]
    if len(kinds) != 1:
        raise BadRequest(f"Expecting exactly one of project, domain, system, unscoped and {_TRUST} in scope.")
    return kinds


async def _scope(db: Database, auth: Json, proven: list[ProvenUser]) -> tuple[Scope, bool]:
    """The scope, and whether it was requested; by default it is the user's default project."""
    requested = auth.get("scope")
    if requested is None:
        default = next((user.default_project_id for user in proven if user.default_project_id), None)
        return (Scope("project", default), False) if default else (UNSCOPED, True)
    if requested == UNSCOPED_WORD:
        return UNSCOPED, True
    (kind,) = _kinds(auth)
    found = await _scope_of(db, kind, requested[kind])
    if found is None:
        raise LoginRefused("unknown scope")
    return found, True


async def _scope_of(db: Database, kind: str, requested: Json) -> Scope | None:
    if kind == "system":
        return SYSTEM if requested["all"] else None
    if kind == "unscoped":
        return UNSCOPED
    if kind == "domain":
        if "id" in requested:
            return Scope("domain", requested["id"])
        item_id = await db.fetch_value("SELECT id FROM domains WHERE name = $1", requested["name"])
        return Scope("domain", item_id) if item_id is not None else None
    if "id" in requested:
        return Scope("project", requested["id"])
    where, domain = in_domain(requested, "project")
    item_id = await db.fetch_value(
        f"SELECT p.id FROM projects p JOIN domains d ON d.id = p.domain_id WHERE p.name = $1 AND {where}",
        requested["name"],
        domain,
    )
    return Scope("project", item_id) if item_id is not None else None


def _find_parent(proven: list[ProvenUser]) -> Token | None:
    """The token by which the user logs in, if one of the methods is a token."""
    return next((user.parent for user in proven if user.parent), None)


async def _issue(ctx: Context, proven: list[ProvenUser], scope: Scope, methods: list[str]) -> tuple[str, Token] | None:
    parent = _find_parent(proven)
    if parent is not None and parent.is_delegated and scope not in (parent.scope, UNSCOPED):
        raise Forbidden("A token of an EC2 credential is for one project only.")
    token_epoch = min(user.token_epoch for user in proven)
    return await token_validator(ctx).issue(proven[0].user_id, scope, methods, token_epoch=token_epoch, parent=parent)


async def _issue_for_application_credential(
    ctx: Context, auth: Json, proven: list[ProvenUser], row: Row
) -> tuple[str, Token]:
    if "scope" in auth:
        raise Unauthorized("Application credentials cannot request a scope: they have the project of their creation.")
    issued = await token_validator(ctx).issue(
        row["user_id"],
        Scope("project", row["project_id"]),
        auth["identity"]["methods"],
        token_epoch=min(user.token_epoch for user in proven),
        parent=_find_parent(proven),
        until=row["expires_at"] or math.inf,
        application_credential_id=row["id"],
    )
    if issued is None:
        raise LoginRefused("the application credential has expired, or the user is disabled or has lost its roles")
    return issued


async def _issue_for_trust(
    ctx: Context, proven: list[ProvenUser], trust_id: str, methods: list[str]
) -> tuple[str, Token]:
    """A token of the trust for its trustee. The user of the token is the trustor if the trust impersonates."""
    parent = _find_parent(proven)
    if parent is not None and parent.is_delegated:
        raise Forbidden("A token of an EC2 credential cannot be used to get a token of a trust.")
    user = min(proven, key=lambda each: each.token_epoch)
    trust = await find_trust(ctx.db, trust_id)
    if trust is None or trust["trustee_user_id"] != user.user_id or trust["remaining_uses"] == 0:
        raise LoginRefused("unknown, expired or used up trust, or the user is not its trustee")
    if not trust["trustee_enabled"]:
        raise LoginRefused("the user is disabled")
    tokens = token_validator(ctx)
    issued = await tokens.issue(
        trust["trustor_user_id" if trust["impersonation"] else "trustee_user_id"],
        Scope("project", trust["project_id"]) if trust["project_id"] else UNSCOPED,
        methods,
        token_epoch=user.token_epoch + trust["trustor_epoch"],
        parent=parent,
        until=trust["expires_at"] or math.inf,
        trust_id=trust["id"],
    )
    if issued is None:
        ctx.audit["target_id"] = trust["id"]
        raise Forbidden("The trust gives no token: its trustor is disabled or has lost a role of it.")
    if trust["remaining_uses"] is not None and not await _use(ctx, trust["id"], issued[1]):
        raise LoginRefused("used up trust")
    return issued


async def _use(ctx: Context, trust_id: str, token: Token) -> bool:
    """Count the token. A trust that is used up is kept until its last token has expired."""
    async with ctx.db.transaction() as tx:
        return bool(
            await tx.execute(
                "UPDATE trusts SET remaining_uses = remaining_uses - 1, expires_at = "
                "CASE WHEN remaining_uses = 1 AND COALESCE(expires_at, $2) >= $2 THEN $2 ELSE expires_at END "
                "WHERE id = $1 AND remaining_uses > 0",
                trust_id,
                token.expires_at + EXPIRED_WINDOW_SECONDS,
            )
        )


async def token_view(ctx: Context, token: Token) -> Json:
    shown: Json = {
        "methods": list(token.methods),
        "user": {
            "domain": {"id": token.user_domain_id, "name": token.user_domain_name},
            "id": token.user_id,
            "name": token.user_name,
            "password_expires_at": None,
        },
        "audit_ids": list(token.audit_ids),
        "issued_at": clock.iso_micro(token.issued_at) + "Z",
        "expires_at": clock.iso_micro(token.expires_at) + "Z",
    }
    if token.trust is not None:
        shown[_TRUST] = {
            "id": token.trust.id,
            "impersonation": token.trust.impersonation,
            "trustor_user": {"id": token.trust.trustor_user_id},
            "trustee_user": {"id": token.trust.trustee_user_id},
        }
    if token.application_credential is not None:
        shown["application_credential"] = token.application_credential._asdict()
        if token.access_rules is not None:
            shown["application_credential"]["access_rules"] = [rule._asdict() for rule in token.access_rules]
    if token.scope == UNSCOPED:
        return {"token": shown}
    if token.project_id is not None:
        shown["project"] = {
            "domain": {"id": token.project_domain_id, "name": token.project_domain_name},
            "id": token.project_id,
            "name": token.project_name,
        }
        shown["is_domain"] = False
    elif token.domain_id is not None:
        shown["domain"] = {"id": token.domain_id, "name": token.domain_name}
    else:
        shown["system"] = {"all": True}
    shown["roles"] = [{"id": item_id, "name": name} for item_id, name in token.role_ids]
    if not flag(ctx, "nocatalog"):
        shown["catalog"] = await catalog_for(ctx, token)
    return {"token": shown}


# Validation and revocation of a token


async def _subject(ctx: Context, rule: str) -> tuple[str, Token]:
    """The token of the header X-Subject-Token, if the rule allows the caller to use it."""
    text = ctx.headers.get("x-subject-token")
    if text is None:
        raise BadRequest("Expecting to find a token in the header X-Subject-Token.")
    token = await token_validator(ctx).look_up(text, allow_expired=flag(ctx, "allow_expired"))
    if token is None:
        raise NotFound("Could not find token.")
    ctx.audit["target_id"] = token.audit_id
    ctx.authorize(rule, {"target.token.user_id": token.user_id})
    return text, token


def _check_enforcement(ctx: Context, token: Token) -> None:
    """Hide a token with access rules from services that would not enforce them."""
    version = ctx.headers.get("openstack-identity-access-rules", "")
    if token.access_rules is not None and not _ENFORCING_VERSION.fullmatch(version):
        raise NotFound("Could not find token.")


_ENFORCING_VERSION = re.compile(r"[1-9]\d*(\.\d+)?")
_VALIDATE: Json = {"nocatalog": QUERY_FLAG, "allow_expired": QUERY_FLAG}


@api.route("GET", "/v3/auth/tokens", checks=["identity:validate_token"], query=_VALIDATE, needs_no_access_rule=True)
async def validate(ctx: Context) -> Response:
    """Validate and show a token."""
    text, token = await _subject(ctx, "identity:validate_token")
    _check_enforcement(ctx, token)
    return Response(await token_view(ctx, token), headers={"X-Subject-Token": text, "Vary": "X-Auth-Token"})


@api.route("HEAD", "/v3/auth/tokens", checks=["identity:check_token"], query=_VALIDATE)
async def check(ctx: Context) -> Response:
    """Check whether a token is valid."""
    text, token = await _subject(ctx, "identity:check_token")
    _check_enforcement(ctx, token)
    return Response(headers={"X-Subject-Token": text, "Vary": "X-Auth-Token"})


@api.route("DELETE", "/v3/auth/tokens", checks=["identity:revoke_token"], status=204)
async def delete(ctx: Context) -> None:
    """Revoke a token."""
    _, token = await _subject(ctx, "identity:revoke_token")
    async with write_transaction(ctx) as tx:
        await revoke(tx, f"token {token.audit_id}", token.issued_at, token_validator(ctx).token_seconds)


# Scopes of the own token


@api.route("GET", "/v3/auth/projects", policy="identity:get_auth_projects")
async def projects(ctx: Context) -> Response:
    """List the projects the own token can be scoped to."""
    shown = [PROJECTS.view(ctx, row) for row in await accessible(ctx.db, ctx.token.user_id, "project")]
    return Response({"projects": shown, "links": list_links(ctx, "auth/projects")})


@api.route("GET", "/v3/auth/domains", policy="identity:get_auth_domains")
async def domains(ctx: Context) -> Response:
    """List the domains the own token can be scoped to."""
    shown = [DOMAINS.view(ctx, row) for row in await accessible(ctx.db, ctx.token.user_id, "domain")]
    return Response({"domains": shown, "links": list_links(ctx, "auth/domains")})


@api.route("GET", "/v3/auth/system", policy="identity:get_auth_system")
async def system(ctx: Context) -> Response:
    """List the systems the own token can be scoped to."""
    shown: list[Any] = [{"all": True}] if await effective_roles(ctx.db, ctx.token.user_id, SYSTEM) else []
    return Response({"system": shown, "links": {"self": link(ctx, "auth/system")}})
