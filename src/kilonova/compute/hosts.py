"""Hosts (before 2.43; services and hypervisors replaced them): services, resources and usage of hosts."""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct, structs

from kilonova.compute.api import api
from kilonova.compute.hypervisors import model as hypervisors
from kilonova.compute.servers.server import EmbeddedFlavor
from kilonova.compute.services import model as services
from kilonova.compute.services.views import status
from kilonova.compute.zones import model as zones
from kilonova.hosts.registry import COMPUTE
from kilonova.http import Context, Response
from kilonova.http.errors import NotFound, NotSupported
from kilonova.http.parameter_types import STRING, Schema, closed_object
from kilonova.store import Reader
from kilonova.store.records import Record

RULE = "os_compute_api:os-hosts:"
LIST: dict[str, Schema] = {"zone": STRING, "service": STRING}
_SWITCH: Schema = {"type": "string", "enum": ["enable", "disable"]}
UPDATE: Schema = {**closed_object({"status": _SWITCH, "maintenance_mode": _SWITCH}), "minProperties": 1}
_SERVERS = "SELECT project_id, flavor, vcpus, ram FROM servers WHERE host = $1 AND NOT deleted ORDER BY created_at, id"


class Usage(Struct):
    cpu: int = 0
    memory_mb: int = 0
    disk_gb: int = 0


class PlacedServer(Record, frozen=True):
    table: ClassVar[str] = "servers"

    project_id: str
    flavor: EmbeddedFlavor
    vcpus: int
    ram: int


@api.route("GET", "/os-hosts", policy=RULE + "list", query=LIST)
async def index(ctx: Context) -> Response:
    """List the hosts of services."""
    shown = [
        {"host_name": service.host, "service": service.program.removeprefix("nova-"), "zone": zone}
        for service, zone in await zones.services(ctx.db, ctx.services.config.scheduler.default_zone)
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
    shown = [
        {"resource": {"host": host, "project": project, **structs.asdict(usage)}} for project, usage in found.items()
    ]
    return Response({"host": shown})


@api.route("PUT", "/os-hosts/{host}", policy=RULE + "update", body=UPDATE)
async def update(ctx: Context, host: str) -> Response:
    """Enable or disable the compute service of a host."""
    shown: dict[str, object] = {"host": host}
    async with ctx.db.transaction() as tx:
        service = await services.lock_by_name(tx, host, COMPUTE)
        if service is None:
            raise _missing(host)
        if "maintenance_mode" in ctx.body:
            if ctx.body["maintenance_mode"] == "enable":
                raise NotSupported("Hosts have no maintenance mode. Disable the host instead.")
            shown["maintenance_mode"] = "off_maintenance"
        if "status" in ctx.body:
            disabled = ctx.body["status"] == "disable"
            shown["status"] = status(await services.change(tx, service, disabled=disabled, disabled_reason=None))
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


async def _resources(reader: Reader, host: str) -> dict[str, Usage]:
    """Amounts of the host, then of each project."""
    found = await hypervisors.get(reader, "host", host)
    if found is None:
        raise _missing(host)
    await hypervisors.add_amounts(reader, [found])
    await hypervisors.add_shared_disks(reader, [found])
    amounts = found.amounts
    projects = _by_project(PlacedServer.decode_all(await reader.fetch(_SERVERS, host)))
    return {
        "(total)": Usage(amounts.vcpus, amounts.memory_mb, amounts.local_gb),
        "(used_now)": Usage(amounts.vcpus_used, amounts.memory_mb_used, amounts.local_gb_used),
        "(used_max)": Usage(*map(sum, zip(*map(structs.astuple, projects.values()), strict=True))),
        **projects,
    }


def _by_project(servers: list[PlacedServer]) -> dict[str, Usage]:
    """The sums of the servers' flavors."""
    projects: dict[str, Usage] = {}
    for server in servers:
        usage = projects.setdefault(server.project_id, Usage())
        usage.cpu += server.vcpus
        usage.memory_mb += server.ram
        usage.disk_gb += server.flavor.disk + server.flavor.ephemeral
    return projects
