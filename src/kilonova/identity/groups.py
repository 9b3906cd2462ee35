"""Groups of users. A user has the roles of its groups."""

from __future__ import annotations

from typing import ClassVar

from kilonova.http import Context, Response
from kilonova.http.errors import BadRequest
from kilonova.http.loop_yielder import collect
from kilonova.identity.api import Json, api, list_links
from kilonova.identity.listing import filters, inexact
from kilonova.identity.projects import home_domain
from kilonova.identity.resources import Resource, conflicts, get, lock_deletions, not_found, write_transaction
from kilonova.identity.schemas import ID_OR_NULL, NAME, QUERY_TEXT, TEXT_OR_NULL
from kilonova.identity.users import USERS
from kilonova.store import Reader, Row, Transaction


class Groups(Resource):
    noun = "group"
    properties: ClassVar[Json] = {"name": NAME, "description": TEXT_OR_NULL, "domain_id": ID_OR_NULL}
    known = ("name", "description", "domain_id")
    columns = ("name", "description")
    defaults: ClassVar[Json] = {"description": ""}
    filters = ("name", "domain_id")
    flags = ()
    domain_column = "domain_id"

    def target(self, item_id: str, row: Row | None = None) -> Json:
        return {} if row is None else {"target.group.domain_id": row["domain_id"]}

    def attributes(self, row: Row) -> Json:
        return {"domain_id": row["domain_id"], "description": row["description"]}

    async def place(self, ctx: Context, body: Json) -> Json:
        return {"domain_id": body.get("domain_id") or home_domain(ctx)}

    async def insert(self, ctx: Context, tx: Transaction, row: Json, body: Json) -> None:
        await get(tx, "domains", row["domain_id"])
        await super().insert(ctx, tx, row, body)

    async def check_update(self, ctx: Context, tx: Transaction, row: Row, body: Json) -> None:
        if body.get("domain_id") not in (None, row["domain_id"]):
            raise BadRequest("The attribute domain_id of a group cannot be changed.")


GROUPS = Groups()


_USER_QUERY: Json = dict.fromkeys(("name", "domain_id"), QUERY_TEXT) | inexact(["name"])


@api.route("GET", "/v3/groups/{group_id}/users", checks=["identity:list_users_in_group"], query=_USER_QUERY)
async def list_users(ctx: Context, group_id: str) -> Response:
    """List the users in a group."""
    await GROUPS.get(ctx, ctx.db, group_id, "identity:list_users_in_group")
    where = filters(ctx, ["name", "domain_id"])
    where.add("id IN (SELECT user_id FROM group_members WHERE group_id = ?)", group_id)
    rows = await ctx.db.fetch(f"SELECT * FROM users WHERE {where.where()} ORDER BY name, id", *where.arguments)
    shown = await collect(USERS.view(ctx, row) for row in rows)
    return Response({"users": shown, "links": list_links(ctx, f"groups/{group_id}/users")})


@api.route(
    "GET",
    "/v3/users/{user_id}/groups",
    checks=["identity:list_groups_for_user"],
    query={"name": QUERY_TEXT} | inexact(["name"]),
)
async def list_of_user(ctx: Context, user_id: str) -> Response:
    """List the groups a user is in."""
    await USERS.get(ctx, ctx.db, user_id, "identity:list_groups_for_user")
    where = filters(ctx, ["name"])
    where.add("id IN (SELECT group_id FROM group_members WHERE user_id = ?)", user_id)
    rows = await ctx.db.fetch(f"SELECT * FROM groups WHERE {where.where()} ORDER BY name, id", *where.arguments)
    shown = await collect(GROUPS.view(ctx, row) for row in rows)
    return Response({"groups": shown, "links": list_links(ctx, f"users/{user_id}/groups")})


# Members

_MEMBER = "/v3/groups/{group_id}/users/{user_id}"
_IS_MEMBER = "group_id = $1 AND user_id = $2"


async def _authorize(ctx: Context, db: Reader, rule: str, group_id: str, user_id: str) -> None:
    """403 if the rule refuses; 404 if the group or the user does not exist."""
    group, user = await GROUPS.find(ctx, db, group_id), await USERS.find(ctx, db, user_id)
    ctx.authorize(rule, {**GROUPS.target(group_id, group), **USERS.target(user_id, user)})
    await get(db, "groups", group_id)
    await get(db, "users", user_id)


def _not_member(group_id: str, user_id: str) -> Exception:
    return not_found("user", f"{user_id} in group {group_id}")


@api.route("PUT", _MEMBER, checks=["identity:add_user_to_group"], status=204)
async def add_user(ctx: Context, group_id: str, user_id: str) -> None:
    """Add a user to a group."""
    with conflicts("group member", user_id):
        async with write_transaction(ctx) as tx:
            await _authorize(ctx, tx, "identity:add_user_to_group", group_id, user_id)
            sql = "INSERT INTO group_members (group_id, user_id) VALUES ($1, $2) ON CONFLICT DO NOTHING"
            await tx.execute(sql, group_id, user_id)


async def check_user(ctx: Context, group_id: str, user_id: str) -> None:
    """Check whether a user is in a group."""
    await _authorize(ctx, ctx.db, "identity:check_user_in_group", group_id, user_id)
    if await ctx.db.fetch_value(f"SELECT 1 FROM group_members WHERE {_IS_MEMBER}", group_id, user_id) is None:
        raise _not_member(group_id, user_id)


for _method in ("GET", "HEAD"):
    api.route(_method, _MEMBER, checks=["identity:check_user_in_group"], status=204)(check_user)


@api.route("DELETE", _MEMBER, checks=["identity:remove_user_from_group"], status=204)
async def remove_user(ctx: Context, group_id: str, user_id: str) -> None:
    """Remove a user from a group. Tokens of the user lose the roles of the group."""
    async with write_transaction(ctx) as tx:
        await _authorize(ctx, tx, "identity:remove_user_from_group", group_id, user_id)
        await lock_deletions(tx)
        if not await tx.execute(f"DELETE FROM group_members WHERE {_IS_MEMBER}", group_id, user_id):
            raise _not_member(group_id, user_id)
