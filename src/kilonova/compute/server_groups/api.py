"""Routes of server groups."""

from __future__ import annotations

from kilonova.compute.api import api
from kilonova.compute.quotas import model as quotas
from kilonova.compute.quotas.source import find_source
from kilonova.compute.server_groups import model, schemas, views
from kilonova.compute.server_groups.model import GroupWithMembers, ServerGroup
from kilonova.http import Context, Response
from kilonova.http.errors import BadRequest, Forbidden, NotFound
from kilonova.http.pagination import page_limit
from kilonova.ids import new_id
from kilonova.store import Reader

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
    found = await model.page(ctx.db, project_id, page_limit(ctx), int(ctx.query_one("offset") or 0))
    shown = await ctx.render_all("server group", await model.load_members(ctx.db, found))
    return Response({"server_groups": shown})


@api.route("POST", GROUPS, policy=RULE + "create", body=schemas.CREATE, query={}, shows=SHOWS)
async def create(ctx: Context) -> Response:
    """Create a server group."""
    if ctx.token.project_id is None:
        raise Forbidden("A server group belongs to a project, and this token has no project.")
    group = ServerGroup(
        id=new_id(),
        project_id=ctx.token.project_id,
        user_id=ctx.token.user_id,
        name=ctx.body["server_group"]["name"],
        policy=ctx.body["server_group"]["policy"],
        max_server_per_host=_max_server_per_host(ctx),
        created_at=ctx.now,
    )
    source = await find_source(ctx.services, ctx.token.project_id)
    async with ctx.db.transaction() as tx:
        project_id, user_id = ctx.token.project_id, ctx.token.user_id
        limit = (await quotas.limits(tx, project_id, source))["server_groups"]
        full = 0 <= limit <= await model.count(tx, project_id)
        if full or await quotas.is_user_limit_reached(tx, project_id, user_id, source, "server_groups"):
            raise Forbidden("Quota exceeded, too many server groups.")
        await model.create(tx, group)
    return Response({"server_group": ctx.render("server group", GroupWithMembers(group, []))})


def _max_server_per_host(ctx: Context) -> int | None:
    body = ctx.body["server_group"]
    rules = body.get("rules", {})
    if not rules:
        return None
    if body["policy"] != model.ANTI_AFFINITY:
        raise BadRequest("Only anti-affinity policy supports rules.")
    return int(rules["max_server_per_host"])


@api.route("GET", GROUP, checks=[RULE + "show"], query={}, shows=SHOWS)
async def show(ctx: Context, group_id: str) -> Response:
    """Show a server group."""
    (group,) = await model.load_members(ctx.db, [await _find(ctx, ctx.db, group_id)])
    return Response({"server_group": ctx.render("server group", group)})


@api.route("DELETE", GROUP, checks=[RULE + "delete"], query={}, status=204)
async def delete(ctx: Context, group_id: str) -> None:
    """Delete a server group; its servers stay."""
    async with ctx.db.transaction() as tx:
        group = await _find(ctx, tx, group_id)
        ctx.authorize(RULE + "delete", _target(group))
        if not await model.delete(tx, group_id):
            raise _missing(group_id)


async def _find(ctx: Context, reader: Reader, group_id: str) -> ServerGroup:
    """The group; 404 if the caller may not see it."""
    group = await model.get(reader, group_id)
    if group is None or not ctx.may(RULE + "show", _target(group)):
        raise _missing(group_id)
    return group


def _target(group: ServerGroup) -> dict[str, str]:
    return {"project_id": group.project_id, "user_id": group.user_id}


def _missing(group_id: str) -> NotFound:
    return NotFound(f"Instance group {group_id} could not be found.")
