"""The view of a router."""

from __future__ import annotations

from typing import Any

import orjson

from kilonova.network import resources
from kilonova.network.ports.model import Port
from kilonova.store import Row


def view(row: Row, gateway: Port | None) -> dict[str, Any]:
    info = None
    if gateway is not None:
        info = {
            "network_id": gateway.row["network_id"],
            "enable_snat": row["enable_snat"],
            "external_fixed_ips": gateway.fixed_ips,
        }
    return {
        "id": row["id"],
        "name": row["name"],
        "status": row["status"],
        "admin_state_up": row["admin_state_up"],
        "external_gateway_info": info,
        "routes": orjson.loads(row["routes"]),
        "distributed": False,
        "ha": False,
        "availability_zone_hints": orjson.loads(row["availability_zone_hints"]),
        "availability_zones": [],
        **resources.standard_view(row),
    }
