"""The route of availability zones."""

from __future__ import annotations

from kilonova.http import Answer, Context
from kilonova.volume.api import api
from kilonova.volume.services import model


@api.route("GET", "/os-availability-zone", policy="volume:availability_zone_list")
async def index(ctx: Context) -> Answer:
    """List availability zones: those that servers can be in."""
    parts = await model.parts(ctx.db, ctx.services.config, ctx.now)
    available = not all(part["disabled"] for part in parts)
    names = sorted(await model.zones(ctx.db, ctx.services.config))
    shown = [{"zoneName": name, "zoneState": {"available": available}} for name in names]
    return Answer({"availabilityZoneInfo": shown})
