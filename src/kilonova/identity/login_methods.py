"""The methods by which users log in: each proves who the user is."""

from __future__ import annotations

from typing import NamedTuple

from kilonova.http import Context
from kilonova.http.errors import BadRequest, Forbidden, Unauthorized
from kilonova.identity.api import Json
from kilonova.identity.logins import LoginRefused, check_password
from kilonova.identity.resources import token_validator
from kilonova.identity.token import LOGIN_METHODS, Token
from kilonova.store import Row

_MAX_AUDIT_LENGTH = 255
STRING: Json = {"type": "string", "maxLength": 4096}
DOMAIN_REFERENCE: Json = {"type": "object", "properties": {"id": STRING, "name": STRING}, "minProperties": 1}
NAMED: Json = {
    "type": "object",
    "properties": {"id": STRING, "name": STRING, "domain": DOMAIN_REFERENCE},
    "minProperties": 1,
}
METHOD_SCHEMAS: Json = {
    "password": {
        "type": "object",
        "properties": {"user": {**NAMED, "properties": {**NAMED["properties"], "password": STRING}}},
        "required": ["user"],
    },
    "token": {"type": "object", "properties": {"id": STRING}, "required": ["id"]},
    "application_credential": {
        "type": "object",
        "properties": {"id": STRING, "name": STRING, "secret": STRING, "user": NAMED},
        "required": ["secret"],
    },
}


class ProvenUser(NamedTuple):
    """The user that one authentication method has proved.

    `token_epoch` is `users.token_epoch` when the method read the credentials.
    """

    user_id: str
    token_epoch: int
    default_project_id: str | None = None
    parent: Token | None = None
    application_credential: Row | None = None


async def prove(ctx: Context, method: str, identity: Json) -> ProvenUser:
    if method not in LOGIN_METHODS:
        raise Unauthorized("Attempted to authenticate with an unsupported method.")
    if method not in identity:
        raise BadRequest(f"Expecting to find {method} in identity: it is named in methods.")
    return await _PROOFS[method](ctx, identity[method])


async def _by_token(ctx: Context, given: Json) -> ProvenUser:
    parent = await token_validator(ctx).validate(given["id"])
    if parent is None:
        raise LoginRefused("the token is not valid")
    ctx.audit["user"] = {"id": parent.user_id, "name": parent.user_name}
    if parent.trust is not None or parent.application_credential is not None:
        raise Forbidden("A token of a trust or of an application credential cannot be used to get another token.")
    return ProvenUser(parent.user_id, parent.token_epoch, parent=parent)


async def _by_password(ctx: Context, given: Json) -> ProvenUser:
    user = given["user"]
    where, arguments = _matches(user)
    row = await ctx.db.fetch_one(
        "SELECT u.id, u.password_hash, u.default_project_id, u.token_epoch "
        f"FROM users u JOIN domains d ON d.id = u.domain_id WHERE {where}",
        *arguments,
    )
    stored = row["password_hash"] if row is not None else None
    ctx.audit["user"] = _shown_user(user, row)
    await check_password(ctx, (where, *arguments), user.get("password", ""), stored)
    assert row is not None
    return ProvenUser(row["id"], row["token_epoch"], row["default_project_id"])


async def _by_application_credential(ctx: Context, given: Json) -> ProvenUser:
    where, arguments = _matches_credential(given)
    row = await ctx.db.fetch_one(
        "SELECT a.*, u.name AS user_name, u.token_epoch FROM application_credentials a "
        f"JOIN users u ON u.id = a.user_id JOIN domains d ON d.id = u.domain_id WHERE {where}",
        *arguments,
    )
    stored = row["secret_hash"] if row is not None else None
    shown: Json = {"application_credential_id": given["id"][:_MAX_AUDIT_LENGTH]} if "id" in given else {}
    ctx.audit["user"] = shown if row is None else {**shown, "id": row["user_id"], "name": row["user_name"]}
    words = ("application credential", "secret")
    await check_password(ctx, ("application credential", where, *arguments), given["secret"], stored, of=words)
    assert row is not None
    return ProvenUser(row["user_id"], row["token_epoch"], application_credential=row)


def _matches_credential(given: Json) -> tuple[str, tuple[str, ...]]:
    """The SQL condition on the application credential that the body gives by id, or by name and user."""
    if "id" in given:
        return "a.id = $1", (given["id"],)
    if "name" not in given:
        raise BadRequest("Expecting to find id or name in application_credential.")
    if "user" not in given:
        raise BadRequest("Expecting to find user in application_credential: a name alone is not unique.")
    where, arguments = _matches(given["user"])
    return f"{where} AND a.name = ${len(arguments) + 1}", (*arguments, given["name"])


def _shown_user(user: Json, row: Row | None) -> Json:
    """The user of a login for the audit log: the id if the user exists, and the name or id that the body gives."""
    given: Json = {key: user[key][:_MAX_AUDIT_LENGTH] for key in ("id", "name") if key in user}
    return given if row is None else {**given, "id": row["id"]}


def _matches(user: Json) -> tuple[str, tuple[str, ...]]:
    """The SQL condition on the user that the body gives by id or name, and its values."""
    if "id" in user:
        return "u.id = $1", (user["id"],)
    where, domain = in_domain(user, "user")
    return f"u.name = $1 AND {where}", (user["name"], domain)


def in_domain(named: Json, noun: str) -> tuple[str, str]:
    """The SQL condition on the domain of a user or project that the body gives by name, and its value."""
    if "name" not in named:
        raise BadRequest(f"Expecting to find id or name in {noun}.")
    if "domain" not in named:
        raise BadRequest(f"Expecting to find domain in {noun}: a name alone is not unique.")
    domain = named["domain"]
    return ("d.id = $2", domain["id"]) if "id" in domain else ("d.name = $2", domain["name"])


_PROOFS = {
    "token": _by_token,
    "password": _by_password,
    "application_credential": _by_application_credential,
}
