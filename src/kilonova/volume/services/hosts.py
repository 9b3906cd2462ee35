"""Routes of the hosts of the volume service and their usage."""

from __future__ import annotations

from kilonova.http import Context, Response
from kilonova.http.errors import NotFound
from kilonova.store import Row
from kilonova.volume.api import api
from kilonova.volume.backend_capabilities import BACKEND
from kilonova.volume.services import model

RULE = "volume_extension:hosts"
_TOTAL = "(total)"


@api.route("GET", "/os-hosts", policy=RULE, shows=("hosts", "volume host", True))
async def index(ctx: Context) -> Response:
    """List the hosts of the volume service."""
    services = await model.list_services(ctx)
    return Response({"hosts": [ctx.render("volume host", service) for service in services]})


@api.route("GET", "/os-hosts/{host}", policy=RULE)
async def show(ctx: Context, host: str) -> Response:
    """Show the usage of a host, in total and by project."""
    if host != BACKEND:
        raise NotFound(f"Host {host} could not be found.")
    rows = await model.usage_by_project(ctx.db)
    total = {key: sum(int(row[key]) for row in rows) for key in ("volumes", "volume_gb", "snapshots", "snapshot_gb")}
    return Response({"host": [_resource(row) for row in ({**total, "project_id": _TOTAL}, *rows)]})


def _resource(row: Row) -> dict[str, dict[str, str]]:
    """Numbers are strings in this API."""
    return {
        "resource": {
            "host": BACKEND,
            "project": row["project_id"],
            "volume_count": str(row["volumes"]),
            "total_volume_gb": str(row["volume_gb"]),
            "snapshot_count": str(row["snapshots"]),
            "total_snapshot_gb": str(row["snapshot_gb"]),
        }
    }
