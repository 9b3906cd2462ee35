"""How a subnet is shown."""

from __future__ import annotations

from typing import Any

import orjson

from kilonova.network import rows
from kilonova.store import Row


def view(row: Row) -> dict[str, Any]:
    return {
        "id": row["id"],
        "name": row["name"],
        "network_id": row["network_id"],
        "ip_version": row["ip_version"],
        "cidr": row["cidr"],
        "gateway_ip": row["gateway_ip"],
        "enable_dhcp": row["enable_dhcp"],
        "ipv6_ra_mode": row["ipv6_ra_mode"],
        "ipv6_address_mode": row["ipv6_address_mode"],
        "allocation_pools": orjson.loads(row["allocation_pools"]),
        "dns_nameservers": orjson.loads(row["dns_nameservers"]),
        "host_routes": orjson.loads(row["host_routes"]),
        "subnetpool_id": None,
        "service_types": [],
        **rows.shown(row),
    }
