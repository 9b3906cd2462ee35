"""Routes and views of availability zones; in detail with hosts and services."""

from __future__ import annotations

from kilonova import clock
from kilonova.compute.api import api
from kilonova.compute.zones import model
from kilonova.hosts.heartbeat import is_up
from kilonova.hosts.service import Service
from kilonova.http import Context, Response, View, col

RULE = "os_compute_api:os-availability-zone:"
KEY = "availabilityZoneInfo"
Programs = dict[str, dict[str, object]]

api.view(
    View(
        "zone",
        {
            "zoneName": col("name", {"type": "string"}),
            "zoneState": col("state", {"type": "object", "properties": {"available": {"type": "boolean"}}}),
            "hosts": col("hosts", {"type": ["object", "null"]}),
        },
    )
)


@api.route("GET", "/os-availability-zone", policy=RULE + "list", query={}, shows=(KEY, "zone", True))
async def index(ctx: Context) -> Response:
    """List availability zones."""
    zones = await _services_by_zone(ctx)
    return Response({KEY: [_shown(ctx, name, zones[name], None) for name in zones if name != model.INTERNAL]})


@api.route("GET", "/os-availability-zone/detail", policy=RULE + "detail", query={}, shows=(KEY, "zone", True))
async def detail(ctx: Context) -> Response:
    """List availability zones with hosts and services."""
    zones = await _services_by_zone(ctx)
    return Response({KEY: [_shown(ctx, name, rows, _hosts(ctx, rows)) for name, rows in zones.items()]})


async def _services_by_zone(ctx: Context) -> dict[str, list[Service]]:
    """Services by zone. Available zones come first; otherwise ordered by name."""
    zones: dict[str, list[Service]] = {}
    for service, zone in await model.services(ctx.db, ctx.services.config.scheduler.default_zone):
        zones.setdefault(zone, []).append(service)
    return dict(sorted(zones.items(), key=lambda item: (not _is_available(item[1]), item[0])))


def _is_available(services: list[Service]) -> bool:
    return any(not service.disabled for service in services)


def _shown(ctx: Context, name: str, services: list[Service], hosts: dict[str, Programs] | None) -> dict[str, object]:
    return ctx.render("zone", {"name": name, "state": {"available": _is_available(services)}, "hosts": hosts})


def _hosts(ctx: Context, services: list[Service]) -> dict[str, Programs] | None:
    """The state of services by host and program; None for a zone that is not available."""
    if not _is_available(services):
        return None
    shown: dict[str, Programs] = {}
    for service in services:
        shown.setdefault(service.host, {})[service.program] = {
            "active": not service.disabled,
            "available": is_up(service, ctx.now, ctx.services.config.hosts.down_seconds),
            "updated_at": clock.iso_micro(service.last_seen_at),
        }
    return shown
