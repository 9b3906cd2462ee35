"""Routes of the addresses of a server."""

from __future__ import annotations

from typing import Any

import orjson

from kilonova.compute.api import api
from kilonova.compute.servers import floating, model
from kilonova.compute.servers.views import bare_addresses
from kilonova.http import Answer, Context
from kilonova.http.errors import NotFound

RULE = "os_compute_api:ips:"


@api.route("GET", "/servers/{server_id}/ips", checks=[RULE + "index"], query={})
async def index(ctx: Context, server_id: str) -> Answer:
    """List the addresses of a server by network."""
    return Answer({"addresses": await _addresses(ctx, server_id, RULE + "index")})


@api.route("GET", "/servers/{server_id}/ips/{network}", checks=[RULE + "show"], query={})
async def show(ctx: Context, server_id: str, network: str) -> Answer:
    """Show the addresses of a server on one network, which is called by its name."""
    found = await _addresses(ctx, server_id, RULE + "show")
    if network not in found:
        raise NotFound(f"Instance is not a member of specified network: {network}")
    return Answer({network: found[network]})


async def _addresses(ctx: Context, server_id: str, rule: str) -> dict[str, Any]:
    row = await model.find(ctx, ctx.db, server_id, rule=rule)
    row["nics"] = orjson.loads(row["nics"])
    row["floating"] = await floating.of_ports(ctx, [row])
    return bare_addresses(row, ctx)
