"""Routes of the hosts of the volume service, and of what lies on them."""

from __future__ import annotations

from typing import Any

from kilonova.http import Answer, Context
from kilonova.http.errors import NotFound
from kilonova.volume.api import api
from kilonova.volume.backend import BACKEND
from kilonova.volume.services import model

RULE = "volume_extension:hosts"
_TOTAL = "(total)"


@api.route("GET", "/os-hosts", policy=RULE, shows=("hosts", "volume host", True))
async def index(ctx: Context) -> Answer:
    """List the hosts of the volume service."""
    parts = await model.parts(ctx.db, ctx.services.config, ctx.now)
    return Answer({"hosts": [ctx.render("volume host", part) for part in parts]})


@api.route("GET", "/os-hosts/{host}", policy=RULE)
async def show(ctx: Context, host: str) -> Answer:
    """Show how much lies on a host, in all and of each project."""
    if host != BACKEND:
        raise NotFound(f"Host {host} could not be found.")
    rows = await model.amounts(ctx.db)
    total = {key: sum(int(row[key]) for row in rows) for key in ("volumes", "volume_gb", "snapshots", "snapshot_gb")}
    return Answer({"host": [_resource(row) for row in ({**total, "project_id": _TOTAL}, *rows)]})


def _resource(row: dict[str, Any]) -> dict[str, dict[str, str]]:
    """Numbers are text here, as they always were."""
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
