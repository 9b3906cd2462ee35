"""Routes of availability zones."""

from __future__ import annotations

from kilonova.compute.api import api
from kilonova.compute.zones import model, views
from kilonova.http import Answer, Context

KEY = "availabilityZoneInfo"


@api.route(
    "GET",
    "/os-availability-zone",
    policy="os_compute_api:os-availability-zone:list",
    query={},
    shows=(KEY, "zone", True),
)
async def index(ctx: Context) -> Answer:
    """List availability zones."""
    zones = views.by_zone(await model.services(ctx.db, ctx.services.config.scheduler.default_zone))
    shown = [
        ctx.render("zone", views.row(name, services)) for name, services in zones.items() if name != model.INTERNAL
    ]
    return Answer({KEY: shown})


@api.route(
    "GET",
    "/os-availability-zone/detail",
    policy="os_compute_api:os-availability-zone:detail",
    query={},
    shows=(KEY, "zone", True),
)
async def detail(ctx: Context) -> Answer:
    """List availability zones with hosts and services."""
    down = ctx.services.config.hosts.down_seconds
    zones = views.by_zone(await model.services(ctx.db, ctx.services.config.scheduler.default_zone))
    shown = [
        ctx.render("zone", views.row(name, services, views.hosts(services, ctx.now, down)))
        for name, services in zones.items()
    ]
    return Answer({KEY: shown})
