"""The requested destination of a new server: a zone, a forced host of a zone, or a host or hypervisor."""

from __future__ import annotations

from collections.abc import Mapping

from kilonova.compute.api import api
from kilonova.compute.hypervisors import assigned
from kilonova.compute.servers.scheduling import ANYWHERE, Destination
from kilonova.compute.zones import model as zones
from kilonova.http import Context
from kilonova.http.errors import BadRequest, NotFound

FORCED_HOST = "os_compute_api:servers:create:forced_host"
BY_NAME = "compute:servers:create:requested_destination"
BY_UUID = "os_compute_api:servers:create:requested_destination"
ZONE_ONLY = api.behaviour("availability_zone of a new server is a zone's name")


def authorize(ctx: Context, body: Mapping[str, str]) -> None:
    """Check policy before any lookup, so that errors do not reveal hosts to callers who may not name them."""
    if not ctx.has_behaviour(ZONE_ONLY) and ":" in body.get("availability_zone", ""):
        ctx.authorize(FORCED_HOST)
    if "hypervisor_uuid" in body:
        ctx.authorize(BY_UUID)
    elif "host" in body or "hypervisor_hostname" in body:
        ctx.authorize(BY_NAME)


async def requested_destination(ctx: Context, body: Mapping[str, str]) -> tuple[str | None, Destination]:
    """The pinned zone and the destination of an authorized caller. Raises if a named host does not exist."""
    pin, destination = await _zone(ctx, body.get("availability_zone"))
    host, node = body.get("host"), body.get("hypervisor_hostname")
    if "hypervisor_uuid" in body:
        return pin, await _hypervisor(ctx, body["hypervisor_uuid"], host or node)
    if host is None and node is None:
        return pin, destination
    if destination.forced:
        raise BadRequest(
            "The zone:host:node form of availability_zone cannot be combined with host or hypervisor_hostname."
        )
    await _check(ctx, host, node)
    return pin, Destination(host=host, hypervisor_hostname=node)


async def _zone(ctx: Context, text: str | None) -> tuple[str | None, Destination]:
    """Parse `availability_zone`; the form `zone:host:node`, whose parts may be empty, forces a host."""
    config = ctx.services.config.scheduler
    if text is None:
        return config.default_schedule_zone or None, ANYWHERE
    if ctx.has_behaviour(ZONE_ONLY):
        if text not in await zones.zone_names(ctx.db, config.default_zone):
            raise NotFound("The requested availability zone is not available")
        return text, ANYWHERE
    zone, *names = text.split(":")
    if len(names) > 2:
        raise BadRequest(f"Invalid input received: Unable to parse availability_zone {text}")
    host, node = ([name or None for name in names] + [None, None])[:2]
    if host or node:
        await _check(ctx, host, node)
    if zone and zone not in await zones.zone_names(ctx.db, config.default_zone):
        raise BadRequest("The requested availability zone is not available")
    forced = bool(host or node)
    return zone or None, Destination(host=host, hypervisor_hostname=node, forced=forced)


async def _hypervisor(ctx: Context, uuid: str, named: str | None) -> Destination:
    """The hypervisor, if the caller's list of hypervisors has it; any other one is not found."""
    if named is not None:
        raise BadRequest("hypervisor_uuid cannot be combined with host or hypervisor_hostname.")
    if await assigned.find(ctx, uuid) is None:
        raise BadRequest(f"Hypervisor {uuid} could not be found.")
    return Destination(hypervisor_uuid=uuid)


async def _check(ctx: Context, host: str | None, node: str | None) -> None:
    found = await ctx.db.fetch_one(
        "SELECT 1 AS one FROM hypervisors WHERE (CAST($1 AS TEXT) IS NULL OR host = $1)"
        " AND (CAST($2 AS TEXT) IS NULL OR hypervisor_hostname = $2)",
        host,
        node,
    )
    if found is None:
        name = "/".join(name for name in (host, node) if name)
        raise BadRequest(f"Compute host {name} could not be found.")
