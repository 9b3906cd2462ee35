"""Routes of hosts, which services and hypervisors have replaced."""

from __future__ import annotations

from typing import Any

from kilonova.compute.api import api
from kilonova.compute.hosts import model, schemas
from kilonova.compute.services import model as services
from kilonova.compute.services.views import status
from kilonova.compute.zones import model as zones
from kilonova.hosts.registry import COMPUTE
from kilonova.http import Answer, Context
from kilonova.http.errors import NotFound, NotSupported

RULE = "os_compute_api:os-hosts:"


@api.route("GET", "/os-hosts", policy=RULE + "list", query=schemas.LIST)
async def index(ctx: Context) -> Answer:
    """List the hosts of services."""
    rows = await zones.services(ctx.db, ctx.services.config.scheduler.default_zone)
    shown = [
        {"host_name": row["host"], "service": row["program"].removeprefix("nova-"), "zone": row["zone"]} for row in rows
    ]
    for key in ("zone", "service"):
        # An empty text asks for all of them.
        if wanted := ctx.query_one(key):
            shown = [each for each in shown if each[key] == wanted]
    return Answer({"hosts": shown})


@api.route("GET", "/os-hosts/{host}", policy=RULE + "show")
async def show(ctx: Context, host: str) -> Answer:
    """Show what a compute host has, and who uses it."""
    found = await model.resources(ctx.db, host)
    if found is None:
        raise _missing(host)
    shown = [{"resource": {"host": host, "project": project, **amounts}} for project, amounts in found.items()]
    return Answer({"host": shown})


@api.route("PUT", "/os-hosts/{host}", policy=RULE + "update", body=schemas.UPDATE)
async def update(ctx: Context, host: str) -> Answer:
    """Enable or disable the compute service of a host."""
    shown: dict[str, Any] = {"host": host}
    async with ctx.db.transaction() as tx:
        row = await services.lock_named(tx, host, COMPUTE)
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
    return Answer(shown)


@api.route("GET", "/os-hosts/{host}/startup", policy=RULE + "start")
async def startup(ctx: Context, host: str) -> None:
    """Is refused: no host is started from here."""
    await _refuse(ctx, host, "started")


@api.route("GET", "/os-hosts/{host}/shutdown", policy=RULE + "shutdown")
async def shutdown(ctx: Context, host: str) -> None:
    """Is refused: no host is shut down from here."""
    await _refuse(ctx, host, "shut down")


@api.route("GET", "/os-hosts/{host}/reboot", policy=RULE + "reboot")
async def reboot(ctx: Context, host: str) -> None:
    """Is refused: no host is rebooted from here."""
    await _refuse(ctx, host, "rebooted")


async def _refuse(ctx: Context, host: str, done: str) -> None:
    if await ctx.db.fetch_value("SELECT id FROM services WHERE host = $1 AND program = $2", host, COMPUTE) is None:
        raise _missing(host)
    raise NotSupported(f"Hosts cannot be {done} through this API.")


def _missing(host: str) -> NotFound:
    return NotFound(f"Compute host {host[:80]} could not be found.")
