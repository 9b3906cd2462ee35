"""Removed APIs: routes that respond with 410, for networks, cells and consoles that compute once ran itself."""

from __future__ import annotations

from kilonova.compute.api import api
from kilonova.http import Context
from kilonova.http.errors import Gone

# A word after the method is an action.
REMOVED = {
    "/os-agents": ["GET", "POST"],
    "/os-agents/{id}": ["PUT", "DELETE"],
    "/os-cells": ["POST", "GET"],
    "/os-cells/capacities": ["GET"],
    "/os-cells/detail": ["GET"],
    "/os-cells/info": ["GET"],
    "/os-cells/sync_instances": ["POST"],
    "/os-cells/{id}": ["GET", "PUT", "DELETE"],
    "/os-cells/{id}/capacities": ["GET"],
    "/os-certificates": ["POST"],
    "/os-certificates/{id}": ["GET"],
    "/os-cloudpipe": ["GET", "POST"],
    "/os-cloudpipe/{id}": ["PUT"],
    "/os-fixed-ips/{id}": ["GET"],
    "/os-fixed-ips/{id}/action": ["POST reserve", "POST unreserve"],
    "/os-floating-ip-dns": ["GET"],
    "/os-floating-ip-dns/{id}": ["PUT", "DELETE"],
    "/os-floating-ip-dns/{id}/entries/{entry_id}": ["GET", "PUT", "DELETE"],
    "/os-floating-ips-bulk": ["GET", "POST"],
    "/os-floating-ips-bulk/{id}": ["GET", "PUT"],
    "/os-fping": ["GET"],
    "/os-fping/{id}": ["GET"],
    "/os-networks": ["POST"],
    "/os-networks/add": ["POST"],
    "/os-networks/{id}": ["DELETE"],
    "/os-networks/{id}/action": [
        "POST disassociate",
        "POST disassociate_host",
        "POST disassociate_project",
        "POST associate_host",
    ],
    "/os-security-group-default-rules": ["GET", "POST"],
    "/os-security-group-default-rules/{id}": ["GET", "DELETE"],
    "/os-tenant-networks": ["POST"],
    "/os-tenant-networks/{id}": ["DELETE"],
    "/servers/{server_id}/action": ["POST resetNetwork"],
    "/servers/{server_id}/consoles": ["GET", "POST"],
    "/servers/{server_id}/consoles/{id}": ["GET", "DELETE"],
    "/servers/{server_id}/os-virtual-interfaces": ["GET"],
}


async def raise_gone(ctx: Context, **names: str) -> None:
    """Removed: always 410."""
    raise Gone("This resource is no longer available. No forwarding address is given.")


for path, methods in REMOVED.items():
    for method, _, action in (each.partition(" ") for each in methods):
        if action:
            api.action(action, path, authenticated=True, body={})(raise_gone)
        else:
            api.route(method, path, authenticated=True)(raise_gone)
