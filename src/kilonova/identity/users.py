"""Users: who may ask for a token."""

from __future__ import annotations

import orjson

from kilonova import clock
from kilonova.http import Answer, Context
from kilonova.http.errors import BadRequest, Unauthorized
from kilonova.identity import passwords
from kilonova.identity.auth import REFUSED
from kilonova.identity.core import (
    ANY_TEXT,
    FLAG,
    IDENT,
    NAME,
    OPTIONS,
    PAGES,
    QUERY_FLAG,
    Json,
    api,
    body_of,
    change,
    extra_of,
    filters,
    insert_row,
    link,
    links,
    merged_extra,
    new_ident,
    page,
    row_of,
    row_to_change,
    storing,
    update_row,
    validator,
)
from kilonova.identity.projects import home_domain
from kilonova.identity.projects import view as project_view
from kilonova.identity.tokens import revoke
from kilonova.store import Row, Transaction

PASSWORD: Json = {"type": ["string", "null"], "minLength": 1, "maxLength": 4096}
PROPERTIES: Json = {
    "name": NAME,
    "domain_id": {**IDENT, "type": ["string", "null"]},
    "default_project_id": {**IDENT, "type": ["string", "null"]},
    "enabled": FLAG,
    "password": PASSWORD,
    "options": OPTIONS,
}
KNOWN = ("name", "domain_id", "default_project_id", "enabled", "password", "password_hash", "original_password")


def view(ctx: Context, row: Row) -> Json:
    shown = {
        **orjson.loads(row["extra"]),
        "id": row["id"],
        "name": row["name"],
        "domain_id": row["domain_id"],
        "enabled": row["enabled"],
        "password_expires_at": None,
        "options": {},
        "links": {"self": link(ctx, f"users/{row['id']}")},
    }
    if row["default_project_id"] is not None:
        shown["default_project_id"] = row["default_project_id"]
    return shown


def target(user_id: str) -> Json:
    return {"target.user.id": user_id, "user_id": user_id}


@api.route(
    "GET",
    "/v3/users",
    policy="identity:list_users",
    query={
        "name": ANY_TEXT,
        "domain_id": ANY_TEXT,
        "default_project_id": ANY_TEXT,
        "enabled": QUERY_FLAG,
        **PAGES,
    },
)
async def index(ctx: Context) -> Answer:
    """List users."""
    where = filters(ctx, ["name", "domain_id", "default_project_id"], ["enabled"])
    return await page(ctx, "users", where, view)


@api.route("GET", "/v3/users/{user_id}", checks=["identity:get_user"], query={})
async def show(ctx: Context, user_id: str) -> Answer:
    """Show a user."""
    ctx.authorize("identity:get_user", target(user_id))
    return Answer({"user": view(ctx, await row_of(ctx.db, "users", user_id))})


@api.route("POST", "/v3/users", policy="identity:create_user", body=body_of("user", PROPERTIES, "name"), status=201)
async def create(ctx: Context) -> Answer:
    """Create a user; without a password nobody can log in as that user."""
    body = ctx.body["user"]
    password = body.get("password")
    row = {
        "id": new_ident(),
        "domain_id": body.get("domain_id") or home_domain(ctx),
        "name": body["name"],
        "enabled": body.get("enabled", True),
        "default_project_id": body.get("default_project_id"),
        "password_hash": await passwords.hash_password(password) if password is not None else None,
        "extra": extra_of(body, KNOWN),
    }
    with storing("user", body["name"]):
        async with change(ctx) as tx:
            await row_of(tx, "domains", row["domain_id"])
            await insert_row(tx, "users", row)
    return Answer({"user": view(ctx, row)})


@api.route("PATCH", "/v3/users/{user_id}", policy="identity:update_user", body=body_of("user", PROPERTIES))
async def update(ctx: Context, user_id: str) -> Answer:
    """Change a user; a new password, or disabling, ends the user's tokens."""
    body = ctx.body["user"]
    values: Json = {key: body[key] for key in ("name", "enabled", "default_project_id") if key in body}
    if "password" in body:
        password = body["password"]
        values["password_hash"] = await passwords.hash_password(password) if password is not None else None
    with storing("user", body.get("name", "")):
        async with change(ctx) as tx:
            row = await row_to_change(tx, "users", user_id)
            if body.get("domain_id") not in (None, row["domain_id"]):
                raise BadRequest("The attribute domain_id of a user cannot be changed.")
            values["extra"] = merged_extra(row, body, KNOWN)
            await update_row(tx, "users", user_id, values)
            if "password_hash" in values or (row["enabled"] and not values.get("enabled", True)):
                await _end_tokens(ctx, tx, user_id)
    return Answer({"user": view(ctx, {**row, **values})})


async def _end_tokens(ctx: Context, tx: Transaction, user_id: str) -> None:
    await revoke(tx, f"user {user_id}", clock.now(), validator(ctx).token_seconds)


@api.route("DELETE", "/v3/users/{user_id}", policy="identity:delete_user", status=204)
async def delete(ctx: Context, user_id: str) -> None:
    """Delete a user and the roles the user has."""
    async with change(ctx) as tx:
        await row_to_change(tx, "users", user_id)
        await tx.execute("DELETE FROM role_assignments WHERE user_id = $1", user_id)
        await tx.execute("DELETE FROM users WHERE id = $1", user_id)


@api.route(
    "POST",
    "/v3/users/{user_id}/password",
    checks=["identity:change_password"],
    body=body_of(
        "user",
        {"password": {**PASSWORD, "type": "string"}, "original_password": {"type": "string", "maxLength": 4096}},
        "password",
        "original_password",
    ),
    status=204,
)
async def change_password(ctx: Context, user_id: str) -> None:
    """Change the own password; all tokens of the user end, the one used here too."""
    ctx.authorize("identity:change_password", target(user_id))
    body = ctx.body["user"]
    row = await row_of(ctx.db, "users", user_id)
    if not await passwords.verify_password(body["original_password"], row["password_hash"]):
        raise Unauthorized(REFUSED)
    new_hash = await passwords.hash_password(body["password"])
    async with change(ctx) as tx:
        changed = await tx.execute(
            "UPDATE users SET password_hash = $2 WHERE id = $1 AND password_hash = $3",
            user_id,
            new_hash,
            row["password_hash"],
        )
        if not changed:
            raise Unauthorized(REFUSED)
        await _end_tokens(ctx, tx, user_id)


@api.route(
    "GET",
    "/v3/users/{user_id}/projects",
    checks=["identity:list_user_projects"],
    query={"name": ANY_TEXT, "domain_id": ANY_TEXT, "enabled": QUERY_FLAG},
)
async def list_projects(ctx: Context, user_id: str) -> Answer:
    """List the projects a user has a role in."""
    ctx.authorize("identity:list_user_projects", target(user_id))
    await row_of(ctx.db, "users", user_id)
    where = filters(ctx, ["name", "domain_id"], ["enabled"])
    where.add("id IN (SELECT target_id FROM role_assignments WHERE target_kind = 'project' AND user_id = {0})", user_id)
    rows = await ctx.db.fetch(f"SELECT * FROM projects{where} ORDER BY name, id", *where.values)
    shown = [project_view(ctx, row) for row in rows]
    return Answer({"projects": shown, "links": links(ctx, f"users/{user_id}/projects")})
