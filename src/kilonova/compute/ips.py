"""Routes of the addresses of a server."""

from __future__ import annotations

from kilonova.compute.api import api
from kilonova.compute.servers import floating_ips, model
from kilonova.compute.servers.views import bare_addresses_of
from kilonova.http import Context, Response
from kilonova.http.errors import NotFound

RULE = "os_compute_api:ips:"


@api.route("GET", "/servers/{server_id}/ips", checks=[RULE + "index"], query={})
async def index(ctx: Context, server_id: str) -> Response:
    """List the addresses of a server by network."""
    return Response({"addresses": await _addresses(ctx, server_id, RULE + "index")})


@api.route("GET", "/servers/{server_id}/ips/{network}", checks=[RULE + "show"], query={})
async def show(ctx: Context, server_id: str, network: str) -> Response:
    """Show the addresses of a server on one network, given by name."""
    found = await _addresses(ctx, server_id, RULE + "show")
    if network not in found:
        raise NotFound(f"Instance is not a member of specified network: {network}")
    return Response({network: found[network]})


async def _addresses(ctx: Context, server_id: str, rule: str) -> dict[str, list[dict[str, object]]]:
    server = await model.find(ctx, ctx.db, server_id, rule=rule)
    return bare_addresses_of(server, await floating_ips.addresses_by_port(ctx, [server]))
