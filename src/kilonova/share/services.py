"""Routes of services, for operators, and of availability zones."""

from __future__ import annotations

import uuid

from kilonova import clock
from kilonova.http import Context, Response
from kilonova.http.api import multi
from kilonova.http.parameter_types import STRING, Schema
from kilonova.share.api import api

HOST = "kilonova"
BACK_END = f"{HOST}@directory#directory"
_NAMESPACE = uuid.UUID("2f7c9c0e-6f0b-5a52-9a5e-3d1f4e0b7a10")
_PROGRAMS = {"manila-scheduler": HOST, "manila-share": BACK_END.partition("#")[0]}
_FILTERS = ("host", "binary", "zone", "state", "status")
_QUERY: dict[str, Schema] = {**dict.fromkeys(_FILTERS, STRING), "*": multi(STRING)}


@api.route("GET", "/services", policy="service:index", query=_QUERY)
async def index(ctx: Context) -> Response:
    """List the services. They run in every worker process, and are up while one worker is."""
    workers = await ctx.services.compute_status.workers(ctx.now)
    seen = None if workers.last_seen_at is None else clock.iso_micro(workers.last_seen_at)
    found: list[dict[str, object]] = [
        {
            "id": number,
            "binary": program,
            "host": host,
            "zone": ctx.services.config.scheduler.default_zone,
            "status": "enabled",
            "state": "up" if workers.up else "down",
            "updated_at": seen,
        }
        for number, (program, host) in enumerate(_PROGRAMS.items(), start=1)
    ]
    wanted = {key: value for key in _FILTERS if (value := ctx.query_one(key)) is not None}
    return Response({"services": [each for each in found if all(each[key] == value for key, value in wanted.items())]})


@api.route("GET", "/availability-zones", policy="availability_zone:index")
async def index_zones(ctx: Context) -> Response:
    """List availability zones: those of compute."""
    names = sorted(await ctx.services.compute_status.availability_zones())
    return Response(
        {
            "availability_zones": [
                {"id": str(uuid.uuid5(_NAMESPACE, name)), "name": name, "created_at": None, "updated_at": None}
                for name in names
            ]
        }
    )
