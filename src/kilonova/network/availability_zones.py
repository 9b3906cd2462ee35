"""Routes of availability zones: there is one, because networks and routers are not spread over zones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kilonova.http import Context, Response
from kilonova.http.errors import NotFound
from kilonova.network.api import api

ZONES = ("nova",)


def check_zone_hints(body: Mapping[str, Sequence[str]]) -> None:
    for zone in body.get("availability_zone_hints", []):
        if zone not in ZONES:
            raise NotFound(f"AvailabilityZone {zone} could not be found.", code="AvailabilityZoneNotFound")


@api.route("GET", "/v2.0/availability_zones", policy="get_availability_zone")
async def index(ctx: Context) -> Response:
    """List the availability zones of networks and routers."""
    zones = [
        {"name": name, "resource": resource, "state": "available"}
        for name in ZONES
        for resource in ("network", "router")
    ]
    return Response({"availability_zones": zones})
