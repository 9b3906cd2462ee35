"""Routes of hypervisors."""

from __future__ import annotations

from typing import Any

from kilonova import ids
from kilonova.compute.api import api
from kilonova.compute.hypervisors import model, own, schemas, views
from kilonova.compute.services.api import BY_UUID
from kilonova.compute.services.views import state
from kilonova.http import Answer, Context
from kilonova.http.errors import BadRequest, NotFound, NotSupported
from kilonova.http.pagination import limit_of, marker_missing, next_link
from kilonova.http.pieces import is_true
from kilonova.store import Row

__all__ = ["views"]

RULE = "os_compute_api:os-hypervisors:"
PAGED = "hypervisor lists come in pages"
NO_AMOUNTS = "hypervisors show no amounts"


@api.route(
    "GET",
    "/os-hypervisors",
    checks=[RULE + "list", own.ALL, own.ASSIGNED],
    query=schemas.LIST,
    shows=("hypervisors", "hypervisor summary", True),
)
async def index(ctx: Context) -> Answer:
    """List hypervisors: all, or those that are assigned to the own project."""
    return await _list(ctx, "/os-hypervisors", "hypervisor summary", RULE + "list")


@api.route(
    "GET",
    "/os-hypervisors/detail",
    checks=[RULE + "list-detail", own.ALL, own.ASSIGNED],
    query=schemas.LIST,
    shows=("hypervisors", "hypervisor", True),
)
async def detail(ctx: Context) -> Answer:
    """List hypervisors with details: all, or those that are assigned to the own project, whose details are null."""
    return await _list(ctx, "/os-hypervisors/detail", "hypervisor", RULE + "list-detail")


@api.route(
    "GET",
    "/os-hypervisors/{hypervisor_id}",
    policy=RULE + "show",
    query=schemas.WITH_SERVERS,
    shows=("hypervisor", "hypervisor", False),
)
async def show(ctx: Context, hypervisor_id: str) -> Answer:
    """Show a hypervisor."""
    row = await _one(ctx, hypervisor_id)
    await _complete(ctx, [row], "hypervisor")
    return Answer({"hypervisor": ctx.render("hypervisor", row)})


@api.route("GET", "/os-hypervisors/statistics", policy=RULE + "statistics")
async def statistics(ctx: Context) -> Answer:
    """Show totals over all enabled hypervisors."""
    rows = [row for row in await model.page(ctx.db) if not row["disabled"]]
    await model.add_amounts(ctx.db, rows)
    return Answer({"hypervisor_statistics": model.totals(rows)})


@api.route("GET", "/os-hypervisors/{hypervisor_id}/uptime", policy=RULE + "uptime")
async def uptime(ctx: Context, hypervisor_id: str) -> Answer:
    """Show a hypervisor's uptime."""
    row = await _one(ctx, hypervisor_id)
    if state(row, ctx) == "down":
        raise BadRequest(f"Compute service of {row['host']} is unavailable at this time.")
    shown = views.uptime(row, ctx)
    if shown is None:
        raise NotSupported(f"Host {row['host']} does not report its uptime.")
    return Answer({"hypervisor": {**ctx.render("hypervisor summary", row), "uptime": shown}})


@api.route(
    "GET",
    "/os-hypervisors/{hypervisor_id}/search",
    policy=RULE + "search",
    shows=("hypervisors", "hypervisor summary", True),
)
async def search(ctx: Context, hypervisor_id: str) -> Answer:
    """List the hypervisors whose host name contains a text."""
    rows = await _matching(ctx, hypervisor_id)
    return Answer({"hypervisors": [ctx.render("hypervisor summary", row) for row in rows]})


@api.route(
    "GET",
    "/os-hypervisors/{hypervisor_id}/servers",
    policy=RULE + "servers",
    shows=("hypervisors", "hypervisor summary", True),
)
async def servers(ctx: Context, hypervisor_id: str) -> Answer:
    """List the servers on the hypervisors whose host name contains a text."""
    rows = await _matching(ctx, hypervisor_id)
    await model.add_servers(ctx.db, rows)
    return Answer({"hypervisors": [ctx.render("hypervisor summary", row) for row in rows]})


async def _list(ctx: Context, path: str, view: str, rule: str) -> Answer:
    if not own.sees_all(ctx, rule):
        return await own.listed(ctx, path, view)
    pattern = ctx.query_one("hypervisor_hostname_pattern")
    limit = limit_of(ctx) if ctx.behaves(PAGED) else None
    if pattern is None:
        rows = await model.page(ctx.db, await _marker(ctx), limit)
    elif "limit" in ctx.query or "marker" in ctx.query:
        raise BadRequest(
            "Paging over hypervisors with the hypervisor_hostname_pattern query parameter is not supported."
        )
    else:
        rows, limit = await _matching(ctx, pattern), None
    await _complete(ctx, rows, view)
    shown: dict[str, Any] = {"hypervisors": [ctx.render(view, row) for row in rows]}
    links = next_link(ctx, path, str(rows[-1][_column(ctx)]), len(rows) == limit) if rows else []
    if links:
        shown["hypervisors_links"] = links
    return Answer(shown)


async def _complete(ctx: Context, rows: list[Row], view: str) -> None:
    """What the row alone does not have, for all rows together."""
    if is_true(ctx.query_one("with_servers")):
        await model.add_servers(ctx.db, rows)
    if view == "hypervisor" and not ctx.behaves(NO_AMOUNTS):
        await model.add_amounts(ctx.db, rows)
        await model.add_shared_disks(ctx.db, rows)


def _column(ctx: Context) -> str:
    """Old versions name a hypervisor by number, newer ones by uuid."""
    return "uuid" if ctx.behaves(BY_UUID) else "id"


async def _find(ctx: Context, hypervisor_id: str) -> Row | None:
    if ctx.behaves(BY_UUID):
        if not ids.is_uuid(hypervisor_id):
            raise BadRequest(f"Invalid uuid {hypervisor_id[:80]}")
        return await model.get(ctx.db, "uuid", hypervisor_id)
    if hypervisor_id.isdecimal() and len(hypervisor_id) < 19:
        return await model.get(ctx.db, "id", int(hypervisor_id))
    return None


async def _one(ctx: Context, hypervisor_id: str) -> Row:
    row = await _find(ctx, hypervisor_id)
    if row is None:
        raise NotFound(f"Compute host {hypervisor_id} could not be found.")
    return row


async def _marker(ctx: Context) -> int:
    marker = ctx.query_one("marker")
    if marker is None:
        return 0
    row = await _find(ctx, marker)
    if row is None:
        raise marker_missing(marker)
    number: int = row["id"]
    return number


async def _matching(ctx: Context, pattern: str) -> list[Row]:
    rows = await model.matching(ctx.db, pattern)
    if not rows:
        raise NotFound(f"No hypervisor matching '{pattern}' could be found.")
    return rows
