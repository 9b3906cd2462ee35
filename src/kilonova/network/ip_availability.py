"""Routes of network IP availabilities: how many addresses of each network are in use."""

from __future__ import annotations

import ipaddress

import msgspec

from kilonova.http import Context, Response, multi
from kilonova.network.addresses import Pool
from kilonova.network.api import api
from kilonova.network.errors import network_not_found
from kilonova.store import Row

# Clients read 64-bit integers; an IPv6 subnet can be larger.
MAX_SHOWN = 2**63 - 1
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


def _group_by_network(found: list[Row], ip_versions: set[str]) -> list[dict[str, object]]:
    rows_by_network: dict[str, list[Row]] = {}
    for row in found:
        rows_by_network.setdefault(row["network_id"], []).append(row)
    return [_network_view(rows, ip_versions) for rows in rows_by_network.values()]


def _network_view(rows: list[Row], ip_versions: set[str]) -> dict[str, object]:
    """`rows` are the network's subnets; one row without a subnet if there are none."""
    network = rows[0]
    wanted = [row for row in rows if row["subnet_id"] and (not ip_versions or str(row["ip_version"]) in ip_versions)]
    totals = [_pooled_addresses(row["allocation_pools"]) for row in wanted]
    return {
        "network_id": network["network_id"],
        "network_name": network["network_name"],
        "project_id": network["project_id"],
        "tenant_id": network["project_id"],
        "subnet_ip_availability": [
            {
                "subnet_id": row["subnet_id"],
                "subnet_name": row["subnet_name"],
                "cidr": row["cidr"],
                "ip_version": row["ip_version"],
                "total_ips": min(total, MAX_SHOWN),
                "used_ips": row["used"],
            }
            for row, total in zip(wanted, totals, strict=True)
        ],
        "total_ips": min(sum(totals), MAX_SHOWN),
        "used_ips": sum(row["used"] for row in wanted),
    }


def _pooled_addresses(pools: str) -> int:
    return sum(
        int(ipaddress.ip_address(pool.end)) - int(ipaddress.ip_address(pool.start)) + 1 for pool in _decode_pools(pools)
    )


_decode_pools = msgspec.json.Decoder(tuple[Pool, ...]).decode
