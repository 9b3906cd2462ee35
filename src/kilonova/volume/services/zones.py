"""The route of availability zones."""

from __future__ import annotations

from kilonova.http import Answer, Context
from kilonova.volume.api import api
from kilonova.volume.services import model


@api.route("GET", "/os-availability-zone", policy="volume:availability_zone_list")
async def index(ctx: Context) -> Answer:
    """List availability zones: the one that the back end is in."""
    parts = await model.parts(ctx.db, ctx.services.config, ctx.now)
    zones: dict[str, bool] = {}
    for part in parts:
        zones[part["zone"]] = zones.get(part["zone"], False) or not part["disabled"]
    shown = [{"zoneName": name, "zoneState": {"available": available}} for name, available in zones.items()]
    return Answer({"availabilityZoneInfo": shown})
