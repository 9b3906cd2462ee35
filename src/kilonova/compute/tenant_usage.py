"""Usage of projects: servers that existed in a period, and their hours of vCPUs, memory and disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import orjson

from kilonova import clock
from kilonova.compute.api import api
from kilonova.http import Context, Response, multi
from kilonova.http.errors import BadRequest
from kilonova.http.pagination import LIMIT, MARKER, marker_not_found, next_link, page_limit
from kilonova.http.parameter_types import STRING, is_true
from kilonova.store import Row

RULE = "os_compute_api:os-simple-tenant-usage:"
PATH = "/os-simple-tenant-usage"
PAGED = "usage of projects comes in pages"
HOUR_SECONDS = 3600.0
FOUR_WEEKS_SECONDS = 28 * 24 * HOUR_SECONDS

QUERY = {
    **{name: multi(STRING) for name in ("start", "end", "detailed")},
    "limit": multi(LIMIT),
    "marker": multi(MARKER),
}


# Ordered by project, because pages are grouped by project.
_SERVERS = """
SELECT id, project_id, name, flavor, vm_state, deleted, launched_at, terminated_at FROM servers
WHERE launched_at < $2 AND (terminated_at IS NULL OR terminated_at >= $1)
    AND (CAST($3 AS TEXT) IS NULL OR project_id = $3) AND (project_id, id) > (CAST($4 AS TEXT), CAST($5 AS TEXT))
ORDER BY project_id, id LIMIT $6
"""


@dataclass(frozen=True)
class Period:
    start: float
    stop: float

    def hours(self, row: Row, now: float) -> float:
        """The hours of the server in the period, up to `now`."""
        ended = min(row["terminated_at"] or now, self.stop)
        return float(max(0.0, ended - max(row["launched_at"], self.start)) / HOUR_SECONDS)


@api.route("GET", PATH, policy=RULE + "list", query=QUERY)
async def index(ctx: Context) -> Response:
    """Show the usage of all projects."""
    period, detailed = _period(ctx), is_true(ctx.query_one("detailed") or "0")
    rows, full = await _rows(ctx, period, None)
    groups = [list(group) for _, group in groupby(rows, key=lambda row: row["project_id"])]
    body: dict[str, Any] = {"tenant_usages": [_usage(group, period, ctx.now, detailed=detailed) for group in groups]}
    return Response({**body, **_links(ctx, "tenant_usages_links", PATH, rows, full)})


@api.route("GET", PATH + "/{project_id}", checks=[RULE + "show"], query=QUERY)
async def show(ctx: Context, project_id: str) -> Response:
    """Show the usage of a project by server."""
    ctx.authorize(RULE + "show", {"project_id": project_id})
    period = _period(ctx)
    rows, full = await _rows(ctx, period, project_id)
    body = {"tenant_usage": _usage(rows, period, ctx.now, detailed=True) if rows else {}}
    return Response({**body, **_links(ctx, "tenant_usage_links", f"{PATH}/{project_id}", rows, full)})


async def _rows(ctx: Context, period: Period, project_id: str | None) -> tuple[list[Row], bool]:
    """A page of the servers that existed in the period, and whether it is full.

    Before 2.40 servers beyond the limit are left out. The marker may be a deleted server.
    """
    limit = page_limit(ctx)
    after = ("", "")
    if (marker := ctx.query_one("marker")) is not None:
        row = await ctx.db.fetch_one("SELECT project_id FROM servers WHERE id = $1", marker)
        if row is None or project_id not in (None, row["project_id"]):
            raise marker_not_found(marker)
        after = (row["project_id"], marker)
    rows = await ctx.db.fetch(_SERVERS, period.start, period.stop, project_id, *after, limit) if limit else []
    return rows, bool(rows) and len(rows) == limit


def _links(ctx: Context, name: str, path: str, rows: list[Row], full: bool) -> dict[str, Any]:
    return {name: next_link(ctx, path, rows[-1]["id"], True)} if full and ctx.has_behaviour(PAGED) else {}


def _period(ctx: Context) -> Period:
    stop = _parse_time(ctx, "end", ctx.now)
    start = _parse_time(ctx, "start", stop - FOUR_WEEKS_SECONDS)
    if start > stop:
        raise BadRequest("Invalid start time. The start time cannot occur after the end time.")
    return Period(start, stop)


def _parse_time(ctx: Context, name: str, default: float) -> float:
    text = ctx.query_one(name)
    if not text:
        return default
    try:
        return clock.parse(text)
    except (ValueError, OverflowError):
        raise BadRequest(f"Datetime is in invalid format: {text[:80]!r}") from None


def _usage(rows: Sequence[Row], period: Period, now: float, *, detailed: bool) -> dict[str, Any]:
    """The usage of servers that all belong to one project."""
    servers = [_server(row, period, now) for row in rows]
    shown: dict[str, Any] = {
        "tenant_id": rows[0]["project_id"],
        "total_hours": sum(server["hours"] for server in servers),
        "total_vcpus_usage": sum(server["hours"] * server["vcpus"] for server in servers),
        "total_memory_mb_usage": sum(server["hours"] * server["memory_mb"] for server in servers),
        "total_local_gb_usage": sum(server["hours"] * server["local_gb"] for server in servers),
        "start": clock.iso_micro(period.start),
        "stop": clock.iso_micro(period.stop),
    }
    return {**shown, "server_usages": servers} if detailed else shown


def _server(row: Row, period: Period, now: float) -> dict[str, Any]:
    flavor = orjson.loads(row["flavor"])
    ended = row["terminated_at"]
    return {
        "instance_id": row["id"],
        "name": row["name"],
        "tenant_id": row["project_id"],
        "flavor": flavor["name"],
        "hours": period.hours(row, now),
        "vcpus": flavor["vcpus"],
        "memory_mb": flavor["ram"],
        "local_gb": flavor["disk"] + flavor["ephemeral"],
        "started_at": clock.iso_micro(row["launched_at"]),
        "ended_at": clock.iso_micro(ended) if ended else None,
        "uptime": int((ended or now) - row["launched_at"]),
        "state": "terminated" if row["deleted"] else row["vm_state"],
    }
