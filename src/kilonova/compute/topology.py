"""Route of the NUMA topology of a server."""

from __future__ import annotations

from kilonova.compute.api import api
from kilonova.compute.servers import model
from kilonova.http import Context, Response

RULE = "compute:server:topology:index"
TOPOLOGY = "/servers/{server_id}/topology"


@api.route("GET", TOPOLOGY, checks=[RULE], query={})
async def show(ctx: Context, server_id: str) -> Response:
    """Show the NUMA topology of a server: always empty, because guests are built without NUMA cells."""
    await model.find(ctx, ctx.db, server_id, rule=RULE)
    return Response({"nodes": [], "pagesize_kb": None})
