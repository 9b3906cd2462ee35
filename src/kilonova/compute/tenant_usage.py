"""Usage of projects: servers that existed in a period, and their hours of vCPUs, memory and disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import ClassVar

from kilonova import clock
from kilonova.compute.api import api
from kilonova.compute.servers.server import EmbeddedFlavor
from kilonova.http import Context, Response, repeatable
from kilonova.http.errors import BadRequest
from kilonova.http.pagination import LIMIT, MARKER, marker_not_found, next_link, page_limit
from kilonova.http.parameter_types import STRING, is_true
from kilonova.store.records import Record

RULE = "os_compute_api:os-simple-tenant-usage:"
PATH = "/os-simple-tenant-usage"
PAGED = api.behaviour("usage of projects comes in pages")
HOUR_SECONDS = 3600.0
FOUR_WEEKS_SECONDS = 28 * 24 * HOUR_SECONDS

SHOW = repeatable({"start": STRING, "end": STRING, "limit": LIMIT, "marker": MARKER})
LIST = repeatable({"detailed": STRING, **SHOW})


# Ordered by project, because pages are grouped by project.
_SERVERS = """
SELECT id, project_id, name, flavor, vm_state, deleted, launched_at, terminated_at FROM servers
WHERE launched_at < $2 AND (terminated_at IS NULL OR terminated_at >= $1)
    AND (CAST($3 AS TEXT) IS NULL OR project_id = $3) AND (project_id, id) > (CAST($4 AS TEXT), CAST($5 AS TEXT))
ORDER BY project_id, id LIMIT $6
"""


class UsedServer(Record, frozen=True):
    """A server that has been launched."""

    table: ClassVar[str] = "servers"

    id: str
    project_id: str
    name: str
    flavor: EmbeddedFlavor
    vm_state: str
    deleted: bool
    launched_at: float | None
    terminated_at: float | None


@dataclass(frozen=True)
class Period:
    start: float
    stop: float

    def hours(self, server: UsedServer, now: float) -> float:
        """The hours of the server in the period, up to `now`."""
        ended = min(server.terminated_at or now, self.stop)
        return max(0.0, ended - max(server.launched_at or now, self.start)) / HOUR_SECONDS


@api.route("GET", PATH, policy=RULE + "list", query=LIST)
async def index(ctx: Context) -> Response:
    """Show the usage of all projects."""
    period, detailed = _period(ctx), is_true(ctx.query_one("detailed") or "0")
    servers, full = await _servers(ctx, period, None)
    groups = [list(group) for _, group in groupby(servers, key=lambda server: server.project_id)]
    body = {"tenant_usages": [_usage(group, period, ctx.now, detailed=detailed) for group in groups]}
    return Response({**body, **_links(ctx, "tenant_usages_links", PATH, servers, full)})


@api.route("GET", PATH + "/{project_id}", checks=[RULE + "show"], query=SHOW)
async def show(ctx: Context, project_id: str) -> Response:
    """Show the usage of a project by server."""
    ctx.authorize(RULE + "show", {"project_id": project_id})
    period = _period(ctx)
    servers, full = await _servers(ctx, period, project_id)
    body = {"tenant_usage": _usage(servers, period, ctx.now, detailed=True) if servers else {}}
    return Response({**body, **_links(ctx, "tenant_usage_links", f"{PATH}/{project_id}", servers, full)})


async def _servers(ctx: Context, period: Period, project_id: str | None) -> tuple[list[UsedServer], bool]:
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
    return UsedServer.decode_all(rows), bool(rows) and len(rows) == limit


def _links(ctx: Context, name: str, path: str, servers: list[UsedServer], full: bool) -> dict[str, object]:
    return {name: next_link(ctx, path, servers[-1].id, True)} if full and ctx.has_behaviour(PAGED) else {}


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


def _usage(servers: Sequence[UsedServer], period: Period, now: float, *, detailed: bool) -> dict[str, object]:
    """The usage of servers that all belong to one project."""
    used = [(server.flavor, period.hours(server, now)) for server in servers]
    shown: dict[str, object] = {
        "tenant_id": servers[0].project_id,
        "total_hours": sum(hours for _, hours in used),
        "total_vcpus_usage": sum(hours * flavor.vcpus for flavor, hours in used),
        "total_memory_mb_usage": sum(hours * flavor.ram for flavor, hours in used),
        "total_local_gb_usage": sum(hours * (flavor.disk + flavor.ephemeral) for flavor, hours in used),
        "start": clock.iso_micro(period.start),
        "stop": clock.iso_micro(period.stop),
    }
    return {**shown, "server_usages": [_server(server, period, now) for server in servers]} if detailed else shown


def _server(server: UsedServer, period: Period, now: float) -> dict[str, object]:
    flavor, launched, ended = server.flavor, server.launched_at or now, server.terminated_at
    return {
        "instance_id": server.id,
        "name": server.name,
        "tenant_id": server.project_id,
        "flavor": flavor.name,
        "hours": period.hours(server, now),
        "vcpus": flavor.vcpus,
        "memory_mb": flavor.ram,
        "local_gb": flavor.disk + flavor.ephemeral,
        "started_at": clock.iso_micro(launched),
        "ended_at": clock.iso_micro(ended) if ended else None,
        "uptime": int((ended or now) - launched),
        "state": "terminated" if server.deleted else server.vm_state,
    }
