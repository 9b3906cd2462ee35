"""How a network is shown."""

from __future__ import annotations

from typing import Any

import orjson

from kilonova.http import Context
from kilonova.network import rows
from kilonova.store import Row


def view(ctx: Context, row: Row, subnets: list[str]) -> dict[str, Any]:
    shown = {
        "id": row["id"],
        "name": row["name"],
        "status": row["status"],
        "admin_state_up": row["admin_state_up"],
        "shared": row["shared"],
        "router:external": row["external"],
        "is_default": row["is_default"],
        "mtu": row["mtu"],
        "port_security_enabled": row["port_security_enabled"],
        "subnets": subnets,
        "availability_zone_hints": orjson.loads(row["availability_zone_hints"]),
        "availability_zones": [],
        "ipv4_address_scope": None,
        "ipv6_address_scope": None,
        **rows.shown(row),
    }
    if ctx.may("get_network:provider:network_type"):
        shown["provider:network_type"] = row["network_type"]
        shown["provider:physical_network"] = row["physical_network"] or None
        shown["provider:segmentation_id"] = row["segmentation_id"]
    return shown
