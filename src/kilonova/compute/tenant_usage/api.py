"""Routes of what projects have used."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from kilonova import clock
from kilonova.compute.api import api
from kilonova.compute.tenant_usage import model
from kilonova.compute.tenant_usage.model import Period
from kilonova.http import Answer, Context, multi
from kilonova.http.errors import BadRequest
from kilonova.http.pagination import LIMIT, MARKER, limit_of, marker_missing, next_link
from kilonova.http.pieces import STRING, is_true
from kilonova.store import Row

RULE = "os_compute_api:os-simple-tenant-usage:"
PATH = "/os-simple-tenant-usage"
PAGED = "usage of projects comes in pages"
FOUR_WEEKS = 28 * 24 * 3600.0

QUERY = {
    **{name: multi(STRING) for name in ("start", "end", "detailed")},
    "limit": multi(LIMIT),
    "marker": multi(MARKER),
}


@api.route("GET", PATH, policy=RULE + "list", query=QUERY)
async def index(ctx: Context) -> Answer:
    """Show what all projects have used."""
    period, detailed = _period(ctx), is_true(ctx.query_one("detailed") or "0")
    rows, full = await _rows(ctx, period, None)
    groups = [list(group) for _, group in groupby(rows, key=lambda row: row["project_id"])]
    body: dict[str, Any] = {
        "tenant_usages": [model.usage(group, period, ctx.now, detailed=detailed) for group in groups]
    }
    return Answer({**body, **_links(ctx, "tenant_usages_links", PATH, rows, full)})


@api.route("GET", PATH + "/{project_id}", checks=[RULE + "show"], query=QUERY)
async def show(ctx: Context, project_id: str) -> Answer:
    """Show what a project has used, server by server."""
    ctx.authorize(RULE + "show", {"project_id": project_id})
    period = _period(ctx)
    rows, full = await _rows(ctx, period, project_id)
    body = {"tenant_usage": model.usage(rows, period, ctx.now, detailed=True) if rows else {}}
    return Answer({**body, **_links(ctx, "tenant_usage_links", f"{PATH}/{project_id}", rows, full)})


async def _rows(ctx: Context, period: Period, project_id: str | None) -> tuple[list[Row], bool]:
    """A page, and whether it was full. Before there were pages, what was too much was left out."""
    limit = limit_of(ctx)
    asked = ctx.query_one("marker")
    marker = await model.marked(ctx.db, asked) if asked is not None else None
    if asked is not None and (marker is None or project_id not in (None, marker["project_id"])):
        raise marker_missing(asked)
    rows = await model.servers(ctx.db, period, project_id, marker, limit) if limit else []
    return rows, bool(rows) and len(rows) == limit


def _links(ctx: Context, name: str, path: str, rows: list[Row], full: bool) -> dict[str, Any]:
    return {name: next_link(ctx, path, rows[-1]["id"], True)} if full and ctx.behaves(PAGED) else {}


def _period(ctx: Context) -> Period:
    stop = _moment(ctx, "end", ctx.now)
    start = _moment(ctx, "start", stop - FOUR_WEEKS)
    if start > stop:
        raise BadRequest("Invalid start time. The start time cannot occur after the end time.")
    return Period(start, stop)


def _moment(ctx: Context, name: str, default: float) -> float:
    said = ctx.query_one(name)
    if not said:
        return default
    try:
        return clock.parse(said)
    except (ValueError, OverflowError):
        raise BadRequest(f"Datetime is in invalid format: {said[:80]!r}") from None
