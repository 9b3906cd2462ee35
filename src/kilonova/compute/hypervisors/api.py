"""Routes of hypervisors."""

from __future__ import annotations

from kilonova import ids
from kilonova.compute.api import api
from kilonova.compute.hypervisors import assigned, model, views
from kilonova.compute.hypervisors.model import Hypervisor, ShownHypervisor
from kilonova.compute.services.api import BY_UUID
from kilonova.compute.services.views import state
from kilonova.http import Context, Response
from kilonova.http.errors import BadRequest, NotFound, NotSupported
from kilonova.http.pagination import LIMIT, MARKER, marker_not_found, next_link, page_limit
from kilonova.http.parameter_types import BOOLEAN, Schema, is_true

__all__ = ["views"]

RULE = "os_compute_api:os-hypervisors:"
PATH = "/os-hypervisors"
ONE = PATH + "/{hypervisor_id}"
SUMMARIES = ("hypervisors", "hypervisor summary", True)
PAGED = api.behaviour("hypervisor lists come in pages")
NO_AMOUNTS = api.behaviour("hypervisors show no amounts")
PATTERN: Schema = {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[a-zA-Z0-9-._]*$"}
WITH_SERVERS: dict[str, Schema] = {"with_servers": BOOLEAN}
LIST: dict[str, Schema] = {
    "limit": LIMIT,
    "marker": MARKER,
    "hypervisor_hostname_pattern": PATTERN,
    **WITH_SERVERS,
}


@api.route("GET", PATH, checks=[RULE + "list", assigned.ALL, assigned.ASSIGNED], query=LIST, shows=SUMMARIES)
async def index(ctx: Context) -> Response:
    """List hypervisors: all, or those assigned to the caller's project."""
    return await _list(ctx, PATH, "hypervisor summary", RULE + "list")


@api.route(
    "GET",
    PATH + "/detail",
    checks=[RULE + "list-detail", assigned.ALL, assigned.ASSIGNED],
    query=LIST,
    shows=("hypervisors", "hypervisor", True),
)
async def detail(ctx: Context) -> Response:
    """List hypervisors with details: all, or those assigned to the caller's project, with null for hidden details."""
    return await _list(ctx, PATH + "/detail", "hypervisor", RULE + "list-detail")


@api.route("GET", ONE, policy=RULE + "show", query=WITH_SERVERS, shows=("hypervisor", "hypervisor", False))
async def show(ctx: Context, hypervisor_id: str) -> Response:
    """Show a hypervisor."""
    found = await _get(ctx, hypervisor_id)
    await _add_details(ctx, [found], "hypervisor")
    return Response({"hypervisor": ctx.render("hypervisor", found)})


@api.route("GET", PATH + "/statistics", policy=RULE + "statistics")
async def statistics(ctx: Context) -> Response:
    """Show totals over all enabled hypervisors."""
    enabled = [shown for shown in await model.page(ctx.db) if not shown.disabled]
    await model.add_amounts(ctx.db, enabled)
    return Response({"hypervisor_statistics": model.totals(enabled)})


@api.route("GET", ONE + "/uptime", policy=RULE + "uptime")
async def uptime(ctx: Context, hypervisor_id: str) -> Response:
    """Show a hypervisor's uptime."""
    found = await _get(ctx, hypervisor_id)
    if state(found, ctx) == "down":
        raise BadRequest(f"Compute service of {found.hypervisor.host} is unavailable at this time.")
    shown = views.uptime(found, ctx)
    if shown is None:
        raise NotSupported(f"Host {found.hypervisor.host} does not report its uptime.")
    return Response({"hypervisor": {**ctx.render("hypervisor summary", found), "uptime": shown}})


@api.route("GET", ONE + "/search", policy=RULE + "search", shows=SUMMARIES)
async def search(ctx: Context, hypervisor_id: str) -> Response:
    """List the hypervisors whose host name contains a text."""
    found = await _matching(ctx, hypervisor_id)
    return Response({"hypervisors": await ctx.render_all("hypervisor summary", found)})


@api.route("GET", ONE + "/servers", policy=RULE + "servers", shows=SUMMARIES)
async def servers(ctx: Context, hypervisor_id: str) -> Response:
    """List the servers on the hypervisors whose host name contains a text."""
    found = await _matching(ctx, hypervisor_id)
    await model.add_servers(ctx.db, found)
    return Response({"hypervisors": await ctx.render_all("hypervisor summary", found)})


async def _list(ctx: Context, path: str, view: str, rule: str) -> Response:
    if not assigned.sees_all(ctx, rule):
        return await assigned.list_assigned(ctx, path, view)
    pattern = ctx.query_one("hypervisor_hostname_pattern")
    limit = page_limit(ctx) if ctx.has_behaviour(PAGED) else None
    if pattern is None:
        found = await model.page(ctx.db, await _marker(ctx), limit)
    elif "limit" in ctx.query or "marker" in ctx.query:
        raise BadRequest(
            "Paging over hypervisors with the hypervisor_hostname_pattern query parameter is not supported."
        )
    else:
        found, limit = await _matching(ctx, pattern), None
    await _add_details(ctx, found, view)
    shown: dict[str, object] = {"hypervisors": await ctx.render_all(view, found)}
    links = next_link(ctx, path, _marker_of(ctx, found[-1].hypervisor), len(found) == limit) if found else []
    if links:
        shown["hypervisors_links"] = links
    return Response(shown)


async def _add_details(ctx: Context, found: list[ShownHypervisor], view: str) -> None:
    """Add servers and amounts to all hypervisors, if the view shows them."""
    if is_true(ctx.query_one("with_servers")):
        await model.add_servers(ctx.db, found)
    if view == "hypervisor" and not ctx.has_behaviour(NO_AMOUNTS):
        await model.add_amounts(ctx.db, found)
        await model.add_shared_disks(ctx.db, found)


def _marker_of(ctx: Context, hypervisor: Hypervisor) -> str:
    """Hypervisors have a uuid, and before 2.53 an integer id."""
    return hypervisor.uuid if ctx.has_behaviour(BY_UUID) else str(hypervisor.id)


async def _find(ctx: Context, hypervisor_id: str) -> ShownHypervisor | None:
    if ctx.has_behaviour(BY_UUID):
        if not ids.is_uuid(hypervisor_id):
            raise BadRequest(f"Invalid uuid {hypervisor_id[:80]}")
        return await model.get(ctx.db, "uuid", hypervisor_id)
    if hypervisor_id.isdecimal() and len(hypervisor_id) < 19:
        return await model.get(ctx.db, "id", int(hypervisor_id))
    return None


async def _get(ctx: Context, hypervisor_id: str) -> ShownHypervisor:
    found = await _find(ctx, hypervisor_id)
    if found is None:
        raise NotFound(f"Compute host {hypervisor_id} could not be found.")
    return found


async def _marker(ctx: Context) -> int:
    marker = ctx.query_one("marker")
    if marker is None:
        return 0
    found = await _find(ctx, marker)
    if found is None:
        raise marker_not_found(marker)
    return found.hypervisor.id


async def _matching(ctx: Context, pattern: str) -> list[ShownHypervisor]:
    found = await model.matching(ctx.db, pattern)
    if not found:
        raise NotFound(f"No hypervisor matching '{pattern}' could be found.")
    return found
