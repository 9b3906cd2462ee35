"""Routes of network IP availabilities: how many addresses of each network are in use."""

from __future__ import annotations

import ipaddress
from typing import Any

import orjson

from kilonova.http import Context, Response, multi
from kilonova.network.api import api
from kilonova.network.errors import network_not_found
from kilonova.store import Row

_TEXT = multi({"type": "string"})
_QUERY = dict.fromkeys(("network_id", "network_name", "ip_version", "project_id", "tenant_id", "fields"), _TEXT)
_SELECT = (
    "SELECT n.id AS network_id, n.name AS network_name, n.project_id, s.id AS subnet_id, s.name AS subnet_name, "
    "s.ip_version, s.cidr, s.allocation_pools, "
    "(SELECT count(*) FROM port_addresses a WHERE a.subnet_id = s.id) AS used "
    "FROM networks n LEFT JOIN subnets s ON s.network_id = n.id "
)


@api.route("GET", "/v2.0/network-ip-availabilities", policy="get_network_ip_availability", query=_QUERY)
async def index(ctx: Context) -> Response:
    """List how many addresses each network has and how many are in use."""
    shown = _group_by_network(await ctx.db.fetch(_SELECT + "ORDER BY n.id, s.id"), set(ctx.query.get("ip_version", ())))
    for key in ("network_id", "network_name", "project_id", "tenant_id"):
        wanted = ctx.query.get(key)
        if wanted:
            shown = [item for item in shown if item[key] in wanted]
    return Response({"network_ip_availabilities": shown})


@api.route("GET", "/v2.0/network-ip-availabilities/{network_id}", policy="get_network_ip_availability")
async def show(ctx: Context, network_id: str) -> Response:
    """Show how many addresses a network has and how many are in use."""
    found = await ctx.db.fetch(_SELECT + "WHERE n.id = $1 ORDER BY s.id", network_id)
    if not found:
        raise network_not_found(network_id)
    return Response({"network_ip_availability": _group_by_network(found, set())[0]})


def _group_by_network(found: list[Row], ip_versions: set[str]) -> list[dict[str, Any]]:
    shown: dict[str, dict[str, Any]] = {}
    for row in found:
        network = shown.setdefault(
            row["network_id"],
            {
                "network_id": row["network_id"],
                "network_name": row["network_name"],
                "project_id": row["project_id"],
                "tenant_id": row["project_id"],
                "subnet_ip_availability": [],
                "total_ips": 0,
                "used_ips": 0,
            },
        )
        if row["subnet_id"] is None or (ip_versions and str(row["ip_version"]) not in ip_versions):
            continue
        total = sum(
            int(ipaddress.ip_address(pool["end"])) - int(ipaddress.ip_address(pool["start"])) + 1
            for pool in orjson.loads(row["allocation_pools"])
        )
        network["subnet_ip_availability"].append(
            {
                "subnet_id": row["subnet_id"],
                "subnet_name": row["subnet_name"],
                "cidr": row["cidr"],
                "ip_version": row["ip_version"],
                # Clients read 64-bit integers; an IPv6 subnet can be larger.
                "total_ips": min(total, 2**63 - 1),
                "used_ips": row["used"],
            }
        )
        network["total_ips"] = min(network["total_ips"] + total, 2**63 - 1)
        network["used_ips"] += row["used"]
    return list(shown.values())
