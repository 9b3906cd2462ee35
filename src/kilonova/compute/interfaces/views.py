"""How interfaces of servers are shown: ports of the network service, with the tag that the server knows them by."""

from __future__ import annotations

from typing import Any

from kilonova.compute.api import api
from kilonova.compute.servers.views import NULLABLE, TEXT
from kilonova.http import Context, Field, View, col


def _addresses(row: Any, ctx: Context) -> list[dict[str, Any]]:
    return [{key: address[key] for key in ("subnet_id", "ip_address")} for address in row["fixed_ips"]]


api.view(
    View(
        "interface",
        {
            "net_id": col("network_id", TEXT),
            "port_id": col("id", TEXT),
            "mac_addr": col("mac_address", TEXT),
            "port_state": col("status", TEXT),
            "fixed_ips": Field(_addresses, {"type": "array", "items": {"type": "object"}}),
            "tag": col("tag", NULLABLE),
        },
    )
)
