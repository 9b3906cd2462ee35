"""Routes of groups, which are not supported: lists are empty, and creation is refused."""

from __future__ import annotations

from typing import Any

from kilonova.http import Context, Response
from kilonova.http.errors import NotSupported
from kilonova.identity.api import api, list_links
from kilonova.identity.resources import get, not_found
from kilonova.identity.schemas import QUERY_TEXT
from kilonova.identity.users import USERS

REFUSED = "Groups are not supported by this identity service: assign roles to users."


@api.route(
    "GET",
    "/v3/groups",
    policy="identity:list_groups",
    query={"name": QUERY_TEXT, "domain_id": QUERY_TEXT, "limit": QUERY_TEXT, "marker": QUERY_TEXT},
)
async def index(ctx: Context) -> Response:
    """List groups: there are none."""
    return Response({"groups": [], "links": list_links(ctx, "groups")})


@api.route("GET", "/v3/users/{user_id}/groups", checks=["identity:list_groups_for_user"], query={"name": QUERY_TEXT})
async def index_of_user(ctx: Context, user_id: str) -> Response:
    """List the groups a user is in: none."""
    ctx.authorize("identity:list_groups_for_user", USERS.target(user_id))
    await get(ctx.db, "users", user_id)
    return Response({"groups": [], "links": list_links(ctx, f"users/{user_id}/groups")})


@api.route("POST", "/v3/groups", policy="identity:list_groups")
async def create(ctx: Context) -> Response:
    """Refuse to create a group."""
    raise NotSupported(REFUSED)


async def refuse_unknown(ctx: Context, group_id: str, **params: Any) -> Response:
    """Answer that there is no such group."""
    raise not_found("group", group_id)


_GROUP = "/v3/groups/{group_id}"
_PATHS: dict[str, tuple[str, ...]] = {
    _GROUP: ("GET", "PATCH", "DELETE"),
    f"{_GROUP}/users": ("GET",),
    f"{_GROUP}/users/{{user_id}}": ("GET", "HEAD", "PUT", "DELETE"),
}
for _scope in ("projects/{project_id}", "domains/{domain_id}", "system"):
    _PATHS[f"/v3/{_scope}/groups/{{group_id}}/roles"] = ("GET",)
    _PATHS[f"/v3/{_scope}/groups/{{group_id}}/roles/{{role_id}}"] = ("GET", "HEAD", "PUT", "DELETE")
for _path, _methods in _PATHS.items():
    for _method in _methods:
        api.route(_method, _path, policy="identity:list_groups")(refuse_unknown)
