"""Routes of storage pools and back-end capabilities."""

from __future__ import annotations

from kilonova import clock
from kilonova.http import Context, Response
from kilonova.http.errors import NotFound
from kilonova.http.parameter_types import is_true
from kilonova.volume.api import api
from kilonova.volume.backend_capabilities import ABILITIES, BACKEND, IDENTITY, POOL
from kilonova.volume.services import model, schemas


@api.route(
    "GET", "/scheduler-stats/get_pools", policy="scheduler_extension:scheduler_stats:get_pools", query=schemas.POOLS
)
async def index(ctx: Context) -> Response:
    """List storage pools. There is one."""
    pool: dict[str, object] = {"name": POOL}
    if is_true(ctx.query_one("detail")):
        pool["capabilities"] = await _capabilities(ctx)
    return Response({"pools": [pool] if ctx.query_one("name") in (None, POOL) else []})


@api.route("GET", "/capabilities/{host}", policy="volume_extension:capabilities")
async def show(ctx: Context, host: str) -> Response:
    """Show the capabilities of a back end."""
    if host not in (BACKEND, POOL):
        raise NotFound(f"Service {host} could not be found.")
    return Response(
        {
            **IDENTITY,
            "namespace": f"OS::Storage::Capabilities::{BACKEND}",
            "pool_name": POOL.partition("#")[2],
            "description": None,
            "display_name": None,
            "visibility": None,
            "replication_targets": [],
            "properties": {
                "thin_provisioning": _property("Thin Provisioning", "Uses only the space that was written."),
                "multiattach": _property("Multi-attach", "Several servers can use one volume."),
                "online_extend_support": _property("Online extend", "Volumes in use can be extended."),
            },
        }
    )


async def _capabilities(ctx: Context) -> dict[str, object]:
    rows = await model.usage_by_project(ctx.db)
    total, free = await model.capacity(ctx.services.config.data_dir)
    return {
        **IDENTITY,
        "total_capacity_gb": total,
        "free_capacity_gb": free,
        "allocated_capacity_gb": sum(int(row["volume_gb"]) for row in rows),
        "provisioned_capacity_gb": sum(int(row["volume_gb"]) + int(row["snapshot_gb"]) for row in rows),
        "total_volumes": sum(int(row["volumes"]) for row in rows),
        "reserved_percentage": 0,
        **ABILITIES,
        "backend_state": "up",
        "timestamp": clock.iso_micro(ctx.now),
    }


def _property(title: str, description: str) -> dict[str, str]:
    return {"title": title, "description": description, "type": "boolean"}
