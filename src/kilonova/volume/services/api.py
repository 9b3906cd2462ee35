"""Routes of services, for operators, and of availability zones."""

from __future__ import annotations

from kilonova.http import Context, Response
from kilonova.http.errors import BadRequest, NotFound
from kilonova.volume.api import api
from kilonova.volume.services import extensions, hosts, model, pools, schemas, views

__all__ = ["extensions", "hosts", "pools", "views"]

UPDATE = "volume_extension:services:update"


@api.route(
    "GET",
    "/os-services",
    policy="volume_extension:services:index",
    query=schemas.LIST,
    shows=("services", "volume service", True),
)
async def index(ctx: Context) -> Response:
    """List the services."""
    host, program = ctx.query_one("host"), ctx.query_one("binary") or ctx.query_one("service")
    found = [
        service
        for service in await model.list_services(ctx)
        if program in (None, service.program) and host in (None, service.host, service.host.partition("@")[0])
    ]
    return Response({"services": [ctx.render("volume service", service) for service in found]})


@api.route("PUT", "/os-services/enable", policy=UPDATE, body=schemas.NAMED, query={})
async def enable(ctx: Context) -> Response:
    """Enable a service."""
    return Response({**await _change(ctx, disabled=False), "disabled_reason": None})


@api.route("PUT", "/os-services/disable", policy=UPDATE, body=schemas.NAMED, query={})
async def disable(ctx: Context) -> Response:
    """Disable a service. No volumes can be created until it is enabled again."""
    return Response(await _change(ctx, disabled=True))


@api.route("PUT", "/os-services/disable-log-reason", policy=UPDATE, body=schemas.NAMED_WITH_REASON, query={})
async def disable_with_reason(ctx: Context) -> Response:
    """Disable a service, with a reason."""
    reason = ctx.body["disabled_reason"].strip()
    return Response({**await _change(ctx, disabled=True, reason=reason), "disabled_reason": reason})


@api.route("PUT", "/os-services/freeze", policy=UPDATE, body=schemas.HOST, query={})
async def freeze(ctx: Context) -> Response:
    """Refuse to freeze a back end."""
    raise _not_replicated()


@api.route("PUT", "/os-services/thaw", policy=UPDATE, body=schemas.HOST, query={})
async def thaw(ctx: Context) -> Response:
    """Refuse to thaw a back end."""
    raise _not_replicated()


@api.route("PUT", "/os-services/failover_host", policy=UPDATE, body=schemas.HOST, query={})
async def fail_over(ctx: Context) -> Response:
    """Refuse to fail over to another back end."""
    raise _not_replicated()


@api.route("GET", "/os-availability-zone", policy="volume:availability_zone_list")
async def index_zones(ctx: Context) -> Response:
    """List availability zones. They are those of compute: all hosts reach the only back end."""
    available = not all(service.disabled for service in await model.list_services(ctx))
    names = sorted(await ctx.services.compute_status.availability_zones())
    shown = [{"zoneName": name, "zoneState": {"available": available}} for name in names]
    return Response({"availabilityZoneInfo": shown})


async def _change(ctx: Context, *, disabled: bool, reason: str | None = None) -> dict[str, object]:
    """Change the service, and return its part of the response."""
    host, program = ctx.body["host"], ctx.body.get("binary") or ctx.body["service"]
    if model.HOSTS.get(program) != host:
        raise NotFound(f"Service {program} could not be found on host {host}.")
    async with ctx.db.transaction() as tx:
        await model.set_disabled(tx, program, disabled, reason, ctx.now)
    status = views.status_word(disabled)
    return {"host": host, "service": program, "binary": program, "disabled": disabled, "status": status}


def _not_replicated() -> BadRequest:
    return BadRequest("Invalid input received: the back end of this service is not replicated, so it has no fail-over.")
