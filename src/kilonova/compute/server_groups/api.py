"""Routes of server groups."""

from __future__ import annotations

from typing import Any

from kilonova.compute.api import api
from kilonova.compute.quotas import model as quotas
from kilonova.compute.server_groups import model, schemas, views
from kilonova.http import Answer, Context
from kilonova.http.errors import BadRequest, Forbidden, NotFound
from kilonova.http.pagination import limit_of
from kilonova.ids import new_id
from kilonova.store import Reader, Row

__all__ = ["views"]

RULE = "os_compute_api:os-server-groups:"
GROUP = "/os-server-groups/{group_id}"


@api.route(
    "GET",
    "/os-server-groups",
    policy=RULE + "index",
    query=schemas.LIST,
    shows=("server_groups", "server group", True),
)
async def index(ctx: Context) -> Answer:
    """List server groups; with `all_projects`, whatever its value, those of all projects to whom that is allowed."""
    everywhere = "all_projects" in ctx.query and ctx.may(RULE + "index:all_projects")
    project_id = None if everywhere else ctx.token.project_id or ""
    rows = await model.page(ctx.db, project_id, limit_of(ctx), int(ctx.query_one("offset") or 0))
    await model.dress(ctx.db, rows)
    return Answer({"server_groups": [ctx.render("server group", row) for row in rows]})


@api.route(
    "POST",
    "/os-server-groups",
    policy=RULE + "create",
    body=schemas.CREATE,
    query={},
    shows=("server_group", "server group", False),
)
async def create(ctx: Context) -> Answer:
    """Create a server group."""
    if ctx.token.project_id is None:
        raise Forbidden("A server group belongs to a project, and this token is of none.")
    body = ctx.body["server_group"]
    row = {
        "id": new_id(),
        "project_id": ctx.token.project_id,
        "user_id": ctx.token.user_id,
        "name": body["name"],
        "policy": body["policy"],
        "max_server_per_host": _most(body),
        "created_at": ctx.now,
        "members": [],
    }
    async with ctx.db.transaction() as tx:
        project_id, user_id, config = ctx.token.project_id, ctx.token.user_id, ctx.services.config
        limit = (await quotas.limits(tx, project_id, config))["server_groups"]
        full = 0 <= limit <= await model.count(tx, project_id)
        if full or await quotas.user_is_full(tx, project_id, user_id, config, "server_groups"):
            raise Forbidden("Quota exceeded, too many server groups.")
        await model.create(tx, row)
    return Answer({"server_group": ctx.render("server group", row)})


def _most(body: dict[str, Any]) -> int | None:
    rules = body.get("rules", {})
    if not rules:
        return None
    if body["policy"] != model.ANTI_AFFINITY:
        raise BadRequest("Only anti-affinity policy supports rules.")
    return int(rules["max_server_per_host"])


@api.route("GET", GROUP, checks=[RULE + "show"], query={}, shows=("server_group", "server group", False))
async def show(ctx: Context, group_id: str) -> Answer:
    """Show a server group."""
    row = await _find(ctx, ctx.db, group_id)
    await model.dress(ctx.db, [row])
    return Answer({"server_group": ctx.render("server group", row)})


@api.route("DELETE", GROUP, checks=[RULE + "delete"], query={}, status=204)
async def delete(ctx: Context, group_id: str) -> None:
    """Delete a server group; its servers stay."""
    async with ctx.db.transaction() as tx:
        row = await _find(ctx, tx, group_id)
        ctx.authorize(RULE + "delete", _target(row))
        if not await model.delete(tx, group_id):
            raise _missing(group_id)


async def _find(ctx: Context, reader: Reader, group_id: str) -> Row:
    """The group, if the caller may see it; else it is not there."""
    row = await model.get(reader, group_id)
    if row is None or not ctx.may(RULE + "show", _target(row)):
        raise _missing(group_id)
    return row


def _target(row: Row) -> dict[str, Any]:
    return {"project_id": row["project_id"], "user_id": row["user_id"]}


def _missing(group_id: str) -> NotFound:
    return NotFound(f"Instance group {group_id} could not be found.")
