"""The network service's availability zones: one, since nothing here is spread over zones."""

from __future__ import annotations

from kilonova.http import Answer, Context
from kilonova.network.api import api

ZONES = ("nova",)


@api.route("GET", "/v2.0/availability_zones", policy="get_availability_zone")
async def index(ctx: Context) -> Answer:
    """List the zones that networks and routers can be asked to be in."""
    zones = [
        {"name": name, "resource": resource, "state": "available"}
        for name in ZONES
        for resource in ("network", "router")
    ]
    return Answer({"availability_zones": zones})
