"""Users."""

from __future__ import annotations

from typing import ClassVar

import orjson

from kilonova import clock
from kilonova.http import Context, Response
from kilonova.http.errors import BadRequest, Forbidden
from kilonova.http.loop_yielder import collect
from kilonova.identity import passwords
from kilonova.identity.api import Json, api, list_links
from kilonova.identity.assigned_roles import effective
from kilonova.identity.listing import filters
from kilonova.identity.logins import LoginRefused, audited_refusals, check_password
from kilonova.identity.projects import PROJECTS, home_domain
from kilonova.identity.resources import Resource, get, write_transaction
from kilonova.identity.schemas import BOOLEAN, ID_OR_NULL, NAME, QUERY_FLAG, QUERY_TEXT, USER_OPTIONS, body_of
from kilonova.identity.token_provider import revoke_all_of_user
from kilonova.store import Row, Transaction

PASSWORD: Json = {"type": ["string", "null"], "minLength": 1, "maxLength": 4096}


class Users(Resource):
    noun = "user"
    properties: ClassVar[Json] = {
        "name": NAME,
        "domain_id": ID_OR_NULL,
        "default_project_id": ID_OR_NULL,
        "enabled": BOOLEAN,
        "password": PASSWORD,
        "options": USER_OPTIONS,
    }
    known = (
        *("name", "domain_id", "default_project_id", "enabled"),
        *("password", "password_hash", "password_changed_at", "original_password"),
    )
    columns = ("name", "enabled", "default_project_id")
    # A user without a password cannot log in.
    defaults: ClassVar[Json] = {"enabled": True, "default_project_id": None, "password_hash": None}
    filters = ("name", "domain_id", "default_project_id")
    domain_column = "domain_id"

    def target(self, item_id: str, row: Row | None = None) -> Json:
        target = {"target.user.id": item_id, "user_id": item_id}
        return target if row is None else {**target, "target.user.domain_id": row["domain_id"]}

    def attributes(self, row: Row) -> Json:
        shown = {"domain_id": row["domain_id"], "enabled": row["enabled"], "password_expires_at": None}
        if row["default_project_id"] is not None:
            shown["default_project_id"] = row["default_project_id"]
        return shown

    async def values(self, ctx: Context, body: Json) -> Json:
        values = await super().values(ctx, body)
        if "password" in body:
            password = body["password"]
            values["password_hash"] = await passwords.hash_password(password) if password is not None else None
            values["password_changed_at"] = clock.now()
        return values

    async def place(self, ctx: Context, body: Json) -> Json:
        return {"domain_id": body.get("domain_id") or home_domain(ctx)}

    async def insert(self, ctx: Context, tx: Transaction, row: Json, body: Json) -> None:
        await get(tx, "domains", row["domain_id"])
        await super().insert(ctx, tx, row, body)

    async def check_update(self, ctx: Context, tx: Transaction, row: Row, body: Json) -> None:
        if body.get("domain_id") not in (None, row["domain_id"]):
            raise BadRequest("The attribute domain_id of a user cannot be changed.")

    async def revoke_tokens(self, ctx: Context, tx: Transaction, item_id: str) -> None:
        await revoke_all_of_user(tx, item_id)


USERS = Users()


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
    """Change the own password; revokes all tokens of the user, including the one of this request."""
    ctx.authorize("identity:change_password", USERS.target(user_id))
    body = ctx.body["user"]
    row = await get(ctx.db, "users", user_id)
    if orjson.loads(row["extra"]).get("options", {}).get("lock_password"):
        raise Forbidden("The option lock_password of the user forbids to change the own password.")
    with audited_refusals(ctx):
        await _change_password(ctx, row, body["original_password"], body["password"])


async def _change_password(ctx: Context, row: Row, original: str, password: str) -> None:
    await check_password(ctx, row["id"], original, row["password_hash"])
    new_hash = await passwords.hash_password(password)
    async with write_transaction(ctx) as tx:
        changed = await tx.execute(
            "UPDATE users SET password_hash = $2, password_changed_at = $4 WHERE id = $1 AND password_hash = $3",
            row["id"],
            new_hash,
            row["password_hash"],
            clock.now(),
        )
        if not changed:
            raise LoginRefused("the password has just been changed")
        await USERS.revoke_tokens(ctx, tx, row["id"])


@api.route(
    "GET",
    "/v3/users/{user_id}/projects",
    checks=["identity:list_user_projects"],
    query={"name": QUERY_TEXT, "domain_id": QUERY_TEXT, "enabled": QUERY_FLAG},
)
async def list_projects(ctx: Context, user_id: str) -> Response:
    """List the projects a user has a role in."""
    await USERS.get(ctx, ctx.db, user_id, "identity:list_user_projects")
    where = filters(ctx, ["name", "domain_id"], ["enabled"])
    where.add("id IN (SELECT target_id FROM effective WHERE target_kind = 'project')")
    user = f"${len(where.arguments) + 1}"
    sql = f"{effective(f'user_id = {user}')} SELECT * FROM projects WHERE {where.where()} ORDER BY name, id"
    rows = await ctx.db.fetch(sql, *where.arguments, user_id)
    shown = await collect(PROJECTS.view(ctx, row) for row in rows)
    return Response({"projects": shown, "links": list_links(ctx, f"users/{user_id}/projects")})
