"""Routes of server groups."""

from __future__ import annotations

from typing import Any

from kilonova.compute.api import api
from kilonova.compute.quotas import model as quotas
from kilonova.compute.server_groups import model, schemas, views
from kilonova.http import Context, Response
from kilonova.http.errors import BadRequest, Forbidden, NotFound
from kilonova.http.pagination import page_limit
from kilonova.ids import new_id
from kilonova.store import Reader, Row

__all__ = ["views"]

RULE = "os_compute_api:os-server-groups:"
GROUPS = "/os-server-groups"
GROUP = GROUPS + "/{group_id}"
SHOWS = ("server_group", "server group", False)


@api.route("GET", GROUPS, policy=RULE + "index", query=schemas.LIST, shows=("server_groups", "server group", True))
async def index(ctx: Context) -> Response:
    """List server groups; those of all projects with `all_projects` (any value), if the policy allows it."""
    all_projects = "all_projects" in ctx.query and ctx.may(RULE + "index:all_projects")
    project_id = None if all_projects else ctx.token.project_id or ""
    rows = await model.page(ctx.db, project_id, page_limit(ctx), int(ctx.query_one("offset") or 0))
    await model.add_members(ctx.db, rows)
    return Response({"server_groups": [ctx.render("server group", row) for row in rows]})


@api.route("POST", GROUPS, policy=RULE + "create", body=schemas.CREATE, query={}, shows=SHOWS)
async def create(ctx: Context) -> Response:
    """Create a server group."""
    if ctx.token.project_id is None:
        raise Forbidden("A server group belongs to a project, and this token has no project.")
    body = ctx.body["server_group"]
    row = {
        "id": new_id(),
        "project_id": ctx.token.project_id,
        "user_id": ctx.token.user_id,
        "name": body["name"],
        "policy": body["policy"],
        "max_server_per_host": _max_server_per_host(body),
        "created_at": ctx.now,
        "members": [],
    }
    async with ctx.db.transaction() as tx:
        project_id, user_id, config = ctx.token.project_id, ctx.token.user_id, ctx.services.config
        limit = (await quotas.limits(tx, project_id, config))["server_groups"]
        full = 0 <= limit <= await model.count(tx, project_id)
        if full or await quotas.is_user_limit_reached(tx, project_id, user_id, config, "server_groups"):
            raise Forbidden("Quota exceeded, too many server groups.")
        await model.create(tx, row)
    return Response({"server_group": ctx.render("server group", row)})


def _max_server_per_host(body: dict[str, Any]) -> int | None:
    rules = body.get("rules", {})
    if not rules:
        return None
    if body["policy"] != model.ANTI_AFFINITY:
        raise BadRequest("Only anti-affinity policy supports rules.")
    return int(rules["max_server_per_host"])


@api.route("GET", GROUP, checks=[RULE + "show"], query={}, shows=SHOWS)
async def show(ctx: Context, group_id: str) -> Response:
    """Show a server group."""
    row = await _find(ctx, ctx.db, group_id)
    await model.add_members(ctx.db, [row])
    return Response({"server_group": ctx.render("server group", row)})


@api.route("DELETE", GROUP, checks=[RULE + "delete"], query={}, status=204)
async def delete(ctx: Context, group_id: str) -> None:
    """Delete a server group; its servers stay."""
    async with ctx.db.transaction() as tx:
        row = await _find(ctx, tx, group_id)
        ctx.authorize(RULE + "delete", _target(row))
        if not await model.delete(tx, group_id):
            raise _missing(group_id)


async def _find(ctx: Context, reader: Reader, group_id: str) -> Row:
    """The group; 404 if the caller may not see it."""
    row = await model.get(reader, group_id)
    if row is None or not ctx.may(RULE + "show", _target(row)):
        raise _missing(group_id)
    return row


def _target(row: Row) -> dict[str, Any]:
    return {"project_id": row["project_id"], "user_id": row["user_id"]}


def _missing(group_id: str) -> NotFound:
    return NotFound(f"Instance group {group_id} could not be found.")
