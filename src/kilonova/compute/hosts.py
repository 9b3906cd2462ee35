"""Hosts (before 2.43; services and hypervisors replaced them): services, resources and usage of hosts."""

from __future__ import annotations

from typing import Any

import orjson

from kilonova.compute.api import api
from kilonova.compute.hypervisors import model as hypervisors
from kilonova.compute.services import model as services
from kilonova.compute.services.views import status
from kilonova.compute.zones import model as zones
from kilonova.hosts.registry import COMPUTE
from kilonova.http import Context, Response
from kilonova.http.errors import NotFound, NotSupported
from kilonova.http.parameter_types import STRING, Schema, closed_object
from kilonova.store import Reader, Row

RULE = "os_compute_api:os-hosts:"
LIST: dict[str, Schema] = {"zone": STRING, "service": STRING}
_SWITCH: Schema = {"type": "string", "enum": ["enable", "disable"]}
UPDATE: Schema = {**closed_object({"status": _SWITCH, "maintenance_mode": _SWITCH}), "minProperties": 1}
# Shown fields, and the fields of hypervisors for total and used.
_AMOUNTS = {
    "cpu": ("vcpus", "vcpus_used"),
    "memory_mb": ("memory_mb", "memory_mb_used"),
    "disk_gb": ("local_gb", "local_gb_used"),
}
Amounts = dict[str, int]
_SERVERS = "SELECT project_id, flavor, vcpus, ram FROM servers WHERE host = $1 AND NOT deleted ORDER BY created_at, id"


@api.route("GET", "/os-hosts", policy=RULE + "list", query=LIST)
async def index(ctx: Context) -> Response:
    """List the hosts of services."""
    rows = await zones.services(ctx.db, ctx.services.config.scheduler.default_zone)
    shown = [
        {"host_name": row["host"], "service": row["program"].removeprefix("nova-"), "zone": row["zone"]} for row in rows
    ]
    for key in ("zone", "service"):
        # An empty value is no filter.
        if wanted := ctx.query_one(key):
            shown = [each for each in shown if each[key] == wanted]
    return Response({"hosts": shown})


@api.route("GET", "/os-hosts/{host}", policy=RULE + "show")
async def show(ctx: Context, host: str) -> Response:
    """Show the resources of a compute host and their usage by project."""
    found = await _resources(ctx.db, host)
    shown = [{"resource": {"host": host, "project": project, **amounts}} for project, amounts in found.items()]
    return Response({"host": shown})


@api.route("PUT", "/os-hosts/{host}", policy=RULE + "update", body=UPDATE)
async def update(ctx: Context, host: str) -> Response:
    """Enable or disable the compute service of a host."""
    shown: dict[str, Any] = {"host": host}
    async with ctx.db.transaction() as tx:
        row = await services.lock_by_name(tx, host, COMPUTE)
        if row is None:
            raise _missing(host)
        if "maintenance_mode" in ctx.body:
            if ctx.body["maintenance_mode"] == "enable":
                raise NotSupported("Hosts have no maintenance mode. Disable the host instead.")
            shown["maintenance_mode"] = "off_maintenance"
        if "status" in ctx.body:
            disabled = ctx.body["status"] == "disable"
            row = await services.change(tx, row, disabled=disabled, disabled_reason=None)
            shown["status"] = status(row)
    return Response(shown)


@api.route("GET", "/os-hosts/{host}/startup", policy=RULE + "start")
async def startup(ctx: Context, host: str) -> None:
    """Start a host: always refused."""
    await _refuse(ctx, host, "started")


@api.route("GET", "/os-hosts/{host}/shutdown", policy=RULE + "shutdown")
async def shutdown(ctx: Context, host: str) -> None:
    """Shut down a host: always refused."""
    await _refuse(ctx, host, "shut down")


@api.route("GET", "/os-hosts/{host}/reboot", policy=RULE + "reboot")
async def reboot(ctx: Context, host: str) -> None:
    """Reboot a host: always refused."""
    await _refuse(ctx, host, "rebooted")


async def _refuse(ctx: Context, host: str, done: str) -> None:
    if await ctx.db.fetch_value("SELECT id FROM services WHERE host = $1 AND program = $2", host, COMPUTE) is None:
        raise _missing(host)
    raise NotSupported(f"Hosts cannot be {done} through this API.")


def _missing(host: str) -> NotFound:
    return NotFound(f"Compute host {host[:80]} could not be found.")


async def _resources(reader: Reader, host: str) -> dict[str, Amounts]:
    """Amounts of the host, then of each project."""
    row = await hypervisors.get(reader, "host", host)
    if row is None:
        raise _missing(host)
    await hypervisors.add_amounts(reader, [row])
    await hypervisors.add_shared_disks(reader, [row])
    projects = _by_project(await reader.fetch(_SERVERS, host))
    return {
        "(total)": {name: row[total] for name, (total, _) in _AMOUNTS.items()},
        "(used_now)": {name: row[used] for name, (_, used) in _AMOUNTS.items()},
        "(used_max)": {name: sum(each[name] for each in projects.values()) for name in _AMOUNTS},
        **projects,
    }


def _by_project(servers: list[Row]) -> dict[str, Amounts]:
    """The sums of the servers' flavors."""
    projects: dict[str, Amounts] = {}
    for server in servers:
        amounts = projects.setdefault(server["project_id"], dict.fromkeys(_AMOUNTS, 0))
        flavor = orjson.loads(server["flavor"])
        amounts["cpu"] += server["vcpus"]
        amounts["memory_mb"] += server["ram"]
        amounts["disk_gb"] += flavor.get("disk", 0) + flavor.get("ephemeral", 0)
    return projects
