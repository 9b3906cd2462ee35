"""Groups are not supported: clients that list them find none, and those that need one are told."""

from __future__ import annotations

from typing import Any

from kilonova.http import Answer, Context
from kilonova.http.errors import NotSupported
from kilonova.identity.core import ANY_TEXT, api, links, missing, row_of
from kilonova.identity.users import target

REFUSED = "Groups are not supported by this identity service: give roles to users."


@api.route(
    "GET",
    "/v3/groups",
    policy="identity:list_groups",
    query={"name": ANY_TEXT, "domain_id": ANY_TEXT, "limit": ANY_TEXT, "marker": ANY_TEXT},
)
async def index(ctx: Context) -> Answer:
    """List groups: there are none."""
    return Answer({"groups": [], "links": links(ctx, "groups")})


@api.route("GET", "/v3/users/{user_id}/groups", checks=["identity:list_groups_for_user"], query={"name": ANY_TEXT})
async def of_user(ctx: Context, user_id: str) -> Answer:
    """List the groups a user is in: none."""
    ctx.authorize("identity:list_groups_for_user", target(user_id))
    await row_of(ctx.db, "users", user_id)
    return Answer({"groups": [], "links": links(ctx, f"users/{user_id}/groups")})


@api.route("POST", "/v3/groups", policy="identity:list_groups")
async def create(ctx: Context) -> Answer:
    """Refuse to create a group."""
    raise NotSupported(REFUSED)


async def absent(ctx: Context, group_id: str, **params: Any) -> Answer:
    """Answer that there is no such group."""
    raise missing("group", group_id)


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
        api.route(_method, _path, policy="identity:list_groups")(absent)
