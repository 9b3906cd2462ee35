"""Application credentials: secrets by which programs log in with some of a user's roles in one project."""

from __future__ import annotations

import secrets
from typing import NamedTuple

import orjson

from kilonova import clock
from kilonova.http import Context, Response
from kilonova.http.errors import BadRequest, Forbidden
from kilonova.identity import passwords
from kilonova.identity.access_rules import ACCESS_RULES, add_access_rules
from kilonova.identity.api import Json, api, link
from kilonova.identity.assigned_roles import RoleNotHeld, find_references
from kilonova.identity.expiry import EXPIRES_AT, parse_expiry
from kilonova.identity.listing import list_page
from kilonova.identity.resources import conflicts, lock_deletions, new_id, not_found, write_transaction
from kilonova.identity.rights import find_access_rules, with_implied
from kilonova.identity.schemas import NAME, PAGING, QUERY_TEXT, ROLE_REFERENCES, TEXT_OR_NULL
from kilonova.identity.token import Token
from kilonova.identity.users import USERS
from kilonova.policy.credentials import AccessRule
from kilonova.store import Reader, Row
from kilonova.store.conditions import Conditions
from kilonova.store.insert import insert_row

MANY = "/v3/users/{user_id}/application_credentials"
ONE = f"{MANY}/{{application_credential_id}}"
_SECRET_BYTES = 64
_BODY: Json = {
    "type": "object",
    "properties": {
        "application_credential": {
            "type": "object",
            "properties": {
                "name": NAME,
                "description": TEXT_OR_NULL,
                "secret": {"type": ["string", "null"], "minLength": 1, "maxLength": 4096},
                "roles": ROLE_REFERENCES,
                "expires_at": EXPIRES_AT,
                "unrestricted": {"type": ["boolean", "null"]},
                "access_rules": ACCESS_RULES,
                # The project is that of the token.
                "project_id": {"type": ["string", "null"], "maxLength": 64},
            },
            "required": ["name"],
            "additionalProperties": False,
        }
    },
    "required": ["application_credential"],
    "additionalProperties": False,
}


def check_unrestricted(ctx: Context) -> Token:
    """Refuse tokens that could give themselves more rights by an application credential."""
    token = ctx.token
    assert isinstance(token, Token)
    credential = token.application_credential
    is_unrestricted = credential is not None and not credential.restricted and token.access_rules is None
    if token.is_delegated and not is_unrestricted:
        raise Forbidden(
            "Only a password, a token for a password, or an unrestricted application credential without access rules "
            "can manage application credentials."
        )
    return token


@api.route("POST", MANY, checks=["identity:create_application_credential"], body=_BODY, status=201)
async def create(ctx: Context, user_id: str) -> Response:
    """Create an application credential for the project of the token. Only this response has the secret."""
    ctx.authorize("identity:create_application_credential", USERS.target(user_id))
    token, body = check_unrestricted(ctx), ctx.body["application_credential"]
    if token.project_id is None:
        raise Forbidden("An application credential is for the project of the token, and this token has none.")
    if body.get("project_id") not in (None, token.project_id):
        raise BadRequest("project_id: an application credential is for the project of the token.")
    secret = body.get("secret") or secrets.token_urlsafe(_SECRET_BYTES)
    row = {
        "id": new_id(),
        "user_id": user_id,
        "project_id": token.project_id,
        "name": body["name"],
        "description": body.get("description"),
        "role_ids": orjson.dumps(await _role_ids(ctx.db, token, body)).decode(),
        "unrestricted": bool(body.get("unrestricted")),
        "has_access_rules": body.get("access_rules") is not None,
        "expires_at": parse_expiry(body.get("expires_at")),
        "secret_hash": await passwords.hash_password(secret),
    }
    with conflicts("application_credential", row["name"]):
        async with write_transaction(ctx) as tx:
            await insert_row(tx, "application_credentials", row)
            rules = await add_access_rules(tx, user_id, row["id"], body.get("access_rules") or [])
    shown = _view(ctx, row, _Related(await _role_names(ctx.db), {row["id"]: rules}))
    return Response({"application_credential": {**shown, "secret": secret}})


async def _role_ids(db: Reader, token: Token, body: Json) -> list[str]:
    """The requested roles and those that they imply, by default all of the token. The token must have them."""
    held = [item_id for item_id, _ in token.role_ids]
    try:
        wanted = find_references(body.get("roles") or [], token.role_ids) or held
    except RoleNotHeld as error:
        raise BadRequest(f"roles: the token does not have the role {error} in its project.") from None
    implied = await with_implied(db, wanted)
    return [item_id for item_id in held if item_id in implied]


class _Related(NamedTuple):
    """What views need beside the rows: names of roles, and access rules by the id of the credential."""

    role_names: dict[str, str]
    access_rules: dict[str, tuple[AccessRule, ...]]


async def _role_names(db: Reader) -> dict[str, str]:
    return {row["id"]: row["name"] for row in await db.fetch("SELECT id, name FROM roles")}


def _view(ctx: Context, row: Row, related: _Related) -> Json:
    path = f"users/{row['user_id']}/application_credentials/{row['id']}"
    shown = {key: row[key] for key in ("id", "name", "description", "user_id", "project_id", "unrestricted")}
    if row["has_access_rules"]:
        shown["access_rules"] = [rule._asdict() for rule in related.access_rules.get(row["id"], ())]
    roles = [role_id for role_id in orjson.loads(row["role_ids"]) if role_id in related.role_names]
    return {
        **shown,
        "system": None,
        "expires_at": clock.iso_micro(row["expires_at"]) if row["expires_at"] is not None else None,
        "roles": [{"id": role_id, "name": related.role_names[role_id], "domain_id": None} for role_id in roles],
        "links": {"self": link(ctx, path)},
    }


@api.route("GET", MANY, checks=["identity:list_application_credentials"], query={"name": QUERY_TEXT, **PAGING})
async def index(ctx: Context, user_id: str) -> Response:
    """List the application credentials of a user."""
    await USERS.get(ctx, ctx.db, user_id, "identity:list_application_credentials")
    where = Conditions()
    where.add("user_id = ?", user_id)
    if (name := ctx.query_one("name")) is not None:
        where.add("name = ?", name)
    rows = await ctx.db.fetch("SELECT id FROM application_credentials WHERE user_id = $1", user_id)
    rules = await find_access_rules(ctx.db, [row["id"] for row in rows])
    related = _Related(await _role_names(ctx.db), rules)
    return await list_page(
        ctx,
        "application_credentials",
        where,
        lambda ctx, row: _view(ctx, row, related),
        path=f"users/{user_id}/application_credentials",
    )


async def _get(ctx: Context, db: Reader, user_id: str, item_id: str, rule: str) -> Row:
    """The row. 403 if the rule refuses, which is about the user only; else 404."""
    ctx.authorize(rule, USERS.target(user_id))
    sql = "SELECT * FROM application_credentials WHERE id = $1 AND user_id = $2"
    row = await db.fetch_one(sql, item_id, user_id)
    if row is None:
        raise not_found("application credential", item_id)
    return row


@api.route("GET", ONE, checks=["identity:get_application_credential"])
async def show(ctx: Context, user_id: str, application_credential_id: str) -> Response:
    """Show an application credential, without its secret."""
    row = await _get(ctx, ctx.db, user_id, application_credential_id, "identity:get_application_credential")
    related = _Related(await _role_names(ctx.db), await find_access_rules(ctx.db, [row["id"]]))
    return Response({"application_credential": _view(ctx, row, related)})


@api.route("DELETE", ONE, checks=["identity:delete_application_credential"], status=204)
async def delete(ctx: Context, user_id: str, application_credential_id: str) -> None:
    """Delete an application credential, which ends its tokens."""
    async with write_transaction(ctx) as tx:
        await lock_deletions(tx)
        row = await _get(ctx, tx, user_id, application_credential_id, "identity:delete_application_credential")
        check_unrestricted(ctx)
        await tx.execute("DELETE FROM application_credentials WHERE id = $1", row["id"])
