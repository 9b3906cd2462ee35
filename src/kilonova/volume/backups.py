"""Lists of backups, which this service does not make. They are empty, so that clients can clean up a project."""

from __future__ import annotations

from kilonova.http import Context, Response
from kilonova.volume.api import api

PATH = "/backups"


@api.route("GET", PATH, policy="backup:get_all", query={"*": {}})
async def index(ctx: Context) -> Response:
    """List backups."""
    return Response({"backups": []})


@api.route("GET", f"{PATH}/detail", policy="backup:get_all", query={"*": {}})
async def detail(ctx: Context) -> Response:
    """List backups with details."""
    return Response({"backups": []})
