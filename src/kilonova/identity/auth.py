"""Tokens over HTTP: authenticate, validate, revoke, and what the own token could be scoped to."""

from __future__ import annotations

from typing import Any, NamedTuple

from kilonova import clock
from kilonova.http import Answer, Context
from kilonova.http.errors import BadRequest, NotFound, Unauthorized
from kilonova.identity import passwords
from kilonova.identity.catalog import catalog_for
from kilonova.identity.core import FLAG, QUERY_FLAG, Json, api, change, flag, link, links, validator
from kilonova.identity.domains import view as domain_view
from kilonova.identity.projects import view as project_view
from kilonova.identity.token import METHODS, SYSTEM, UNSCOPED, Scope, Token
from kilonova.identity.tokens import held_roles, revoke
from kilonova.store import Database, Row

# One message for every reason, so that nobody learns which users, projects or domains exist.
REFUSED = "The request you have made requires authentication."

_STRING: Json = {"type": "string", "maxLength": 4096}
_DOMAIN: Json = {"type": "object", "properties": {"id": _STRING, "name": _STRING}, "minProperties": 1}
_NAMED: Json = {"type": "object", "properties": {"id": _STRING, "name": _STRING, "domain": _DOMAIN}, "minProperties": 1}
_SCOPE: Json = {
    "type": "object",
    "properties": {
        "project": _NAMED,
        "domain": _DOMAIN,
        "system": {"type": "object", "properties": {"all": FLAG}, "required": ["all"]},
        "unscoped": {"type": "object"},
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
                        "methods": {"type": "array", "items": _STRING, "minItems": 1, "maxItems": 8},
                        "password": {
                            "type": "object",
                            "properties": {
                                "user": {**_NAMED, "properties": {**_NAMED["properties"], "password": _STRING}}
                            },
                            "required": ["user"],
                        },
                        "token": {"type": "object", "properties": {"id": _STRING}, "required": ["id"]},
                    },
                    "required": ["methods"],
                },
                "scope": {"anyOf": [{"const": "unscoped"}, _SCOPE]},
            },
            "required": ["identity"],
        }
    },
    "required": ["auth"],
}


class _Proof(NamedTuple):
    """Who the caller has shown to be, by a password's user or an older token."""

    user_id: str
    default_project_id: str | None = None
    password_hash: str | None = None
    parent: Token | None = None


@api.route("POST", "/v3/auth/tokens", public=True, body=AUTHENTICATE, query={"nocatalog": QUERY_FLAG}, status=201)
async def authenticate(ctx: Context) -> Answer:
    """Authenticate and get a token."""
    auth = ctx.body["auth"]
    methods = auth["identity"]["methods"]
    proofs = [await _prove(ctx, method, auth["identity"]) for method in dict.fromkeys(methods)]
    if len({proof.user_id for proof in proofs}) != 1:
        raise Unauthorized(REFUSED)
    scope, is_asked = await _scope(ctx.db, auth, proofs)
    issued = await _issue(ctx, proofs, scope, methods)
    if issued is None and not is_asked:
        issued = await _issue(ctx, proofs, UNSCOPED, methods)
    if issued is None:
        raise Unauthorized(REFUSED)
    text, token = issued
    return Answer(_body(ctx, token), headers={"X-Subject-Token": text, "Vary": "X-Auth-Token"})


async def _prove(ctx: Context, method: str, identity: Json) -> _Proof:
    if method not in METHODS:
        raise Unauthorized("Attempted to authenticate with an unsupported method.")
    if method not in identity:
        raise BadRequest(f"Expecting to find {method} in identity: it is named in methods.")
    if method == "token":
        parent = await ctx.services.tokens.validate(identity["token"]["id"])
        if parent is None:
            raise Unauthorized(REFUSED)
        return _Proof(parent.user_id, parent=parent)
    user = identity["password"]["user"]
    row = await _user(ctx.db, user)
    stored = row["password_hash"] if row is not None else None
    if not await passwords.verify_password(user.get("password", ""), stored) or row is None:
        raise Unauthorized(REFUSED)
    return _Proof(row["id"], row["default_project_id"], stored)


async def _user(db: Database, user: Json) -> Row | None:
    columns = "SELECT u.id, u.password_hash, u.default_project_id FROM users u JOIN domains d ON d.id = u.domain_id"
    if "id" in user:
        return await db.fetch_one(f"{columns} WHERE u.id = $1", user["id"])
    where, domain = _in_domain(user, "user")
    return await db.fetch_one(f"{columns} WHERE u.name = $1 AND {where}", user["name"], domain)


def _in_domain(named: Json, noun: str) -> tuple[str, str]:
    """The condition on the domain by which something named is found, and its value."""
    if "name" not in named:
        raise BadRequest(f"Expecting to find id or name in {noun}.")
    if "domain" not in named:
        raise BadRequest(f"Expecting to find domain in {noun}: a name alone is not unique.")
    domain = named["domain"]
    return ("d.id = $2", domain["id"]) if "id" in domain else ("d.name = $2", domain["name"])


async def _scope(db: Database, auth: Json, proofs: list[_Proof]) -> tuple[Scope, bool]:
    """The scope, and whether it was asked for; without a wish it is the user's default project."""
    asked = auth.get("scope")
    if asked is None:
        default = next((proof.default_project_id for proof in proofs if proof.default_project_id), None)
        return (Scope("project", default), False) if default else (UNSCOPED, True)
    if asked == "unscoped":
        return UNSCOPED, True
    kinds = [kind for kind in ("project", "domain", "system", "unscoped") if kind in asked]
    if len(kinds) != 1:
        raise BadRequest("Expecting exactly one of project, domain, system and unscoped in scope.")
    found = await _scope_of(db, kinds[0], asked[kinds[0]])
    if found is None:
        raise Unauthorized(REFUSED)
    return found, True


async def _scope_of(db: Database, kind: str, asked: Json) -> Scope | None:
    if kind == "system":
        return SYSTEM if asked["all"] else None
    if kind == "unscoped":
        return UNSCOPED
    if kind == "domain":
        if "id" in asked:
            return Scope("domain", asked["id"])
        ident = await db.fetch_value("SELECT id FROM domains WHERE name = $1", asked["name"])
        return Scope("domain", ident) if ident is not None else None
    if "id" in asked:
        return Scope("project", asked["id"])
    where, domain = _in_domain(asked, "project")
    ident = await db.fetch_value(
        f"SELECT p.id FROM projects p JOIN domains d ON d.id = p.domain_id WHERE p.name = $1 AND {where}",
        asked["name"],
        domain,
    )
    return Scope("project", ident) if ident is not None else None


async def _issue(ctx: Context, proofs: list[_Proof], scope: Scope, methods: list[str]) -> tuple[str, Token] | None:
    parent = next((proof.parent for proof in proofs if proof.parent), None)
    issued = await validator(ctx).issue(proofs[0].user_id, scope, methods, issued_at=ctx.now, parent=parent)
    for proof in proofs:
        # A password changed while it was being verified does not count any more.
        if proof.password_hash is not None and proof.password_hash != await ctx.db.fetch_value(
            "SELECT password_hash FROM users WHERE id = $1", proof.user_id
        ):
            return None
    return issued


def _body(ctx: Context, token: Token) -> Json:
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
    shown["roles"] = [{"id": ident, "name": name} for ident, name in token.role_ids]
    if not flag(ctx, "nocatalog"):
        shown["catalog"] = catalog_for(ctx)
    return {"token": shown}


# Other tokens


async def _subject(ctx: Context, rule: str) -> tuple[str, Token]:
    """The token that the header names, if the caller may deal with it."""
    text = ctx.headers.get("x-subject-token")
    if text is None:
        raise BadRequest("Expecting to find a token in the header X-Subject-Token.")
    token = await validator(ctx).look_up(text, allow_expired=flag(ctx, "allow_expired"))
    if token is None:
        raise NotFound("Could not find token.")
    ctx.authorize(rule, {"target.token.user_id": token.user_id})
    return text, token


_VALIDATE: Json = {"nocatalog": QUERY_FLAG, "allow_expired": QUERY_FLAG}


@api.route("GET", "/v3/auth/tokens", checks=["identity:validate_token"], query=_VALIDATE)
async def validate(ctx: Context) -> Answer:
    """Validate a token and show what it says."""
    text, token = await _subject(ctx, "identity:validate_token")
    return Answer(_body(ctx, token), headers={"X-Subject-Token": text, "Vary": "X-Auth-Token"})


@api.route("HEAD", "/v3/auth/tokens", checks=["identity:check_token"], query=_VALIDATE)
async def check(ctx: Context) -> Answer:
    """Ask whether a token is valid."""
    text, _ = await _subject(ctx, "identity:check_token")
    return Answer(headers={"X-Subject-Token": text, "Vary": "X-Auth-Token"})


@api.route("DELETE", "/v3/auth/tokens", checks=["identity:revoke_token"], status=204)
async def delete(ctx: Context) -> None:
    """Revoke a token."""
    _, token = await _subject(ctx, "identity:revoke_token")
    async with change(ctx) as tx:
        await revoke(tx, f"token {token.audit_id}", token.issued_at, validator(ctx).token_seconds)


# What the own token could be scoped to


async def _held(ctx: Context, kind: str) -> list[Row]:
    return await ctx.db.fetch(
        f"SELECT t.* FROM {kind}s t WHERE t.enabled AND t.id IN "
        "(SELECT target_id FROM role_assignments WHERE target_kind = $1 AND user_id = $2) ORDER BY t.name, t.id",
        kind,
        ctx.token.user_id,
    )


@api.route("GET", "/v3/auth/projects", policy="identity:get_auth_projects")
async def projects(ctx: Context) -> Answer:
    """List the projects the own token can be scoped to."""
    shown = [project_view(ctx, row) for row in await _held(ctx, "project")]
    return Answer({"projects": shown, "links": links(ctx, "auth/projects")})


@api.route("GET", "/v3/auth/domains", policy="identity:get_auth_domains")
async def domains(ctx: Context) -> Answer:
    """List the domains the own token can be scoped to."""
    shown = [domain_view(ctx, row) for row in await _held(ctx, "domain")]
    return Answer({"domains": shown, "links": links(ctx, "auth/domains")})


@api.route("GET", "/v3/auth/system", policy="identity:get_auth_system")
async def system(ctx: Context) -> Answer:
    """List the systems the own token can be scoped to."""
    shown: list[Any] = [{"all": True}] if await held_roles(ctx.db, ctx.token.user_id, SYSTEM) else []
    return Answer({"system": shown, "links": {"self": link(ctx, "auth/system")}})
