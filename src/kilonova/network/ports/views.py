"""The view of a port."""

from __future__ import annotations

from typing import Any

import orjson

from kilonova.http import Context
from kilonova.network import resources
from kilonova.network.ports.model import BOUND, Port, vif_type

VIF_DETAILS = {"port_filter": True, "connectivity": "l2", "bound_drivers": {"0": "kilonova"}}


def vif_details(kind: str) -> dict[str, Any]:
    return VIF_DETAILS if kind == BOUND else {}


def view(ctx: Context, port: Port) -> dict[str, Any]:
    row = port.row
    shown = {
        "id": row["id"],
        "name": row["name"],
        "network_id": row["network_id"],
        "mac_address": row["mac_address"],
        "admin_state_up": row["admin_state_up"],
        "status": row["status"],
        "device_id": row["device_id"],
        "device_owner": row["device_owner"],
        "fixed_ips": port.fixed_ips,
        "security_groups": port.groups,
        "port_security_enabled": row["port_security_enabled"],
        "allowed_address_pairs": orjson.loads(row["allowed_address_pairs"]),
        "extra_dhcp_opts": orjson.loads(row["extra_dhcp_opts"]),
        "ip_allocation": "immediate" if port.fixed_ips else "none",
        "binding:vnic_type": row["vnic_type"],
        **resources.standard_view(row),
    }
    if ctx.may("get_port:binding:host_id"):
        shown["binding:host_id"] = row["host_id"]
    if ctx.may("get_port:binding:vif_type"):
        shown["binding:vif_type"] = vif_type(row)
    if ctx.may("get_port:binding:vif_details"):
        shown["binding:vif_details"] = vif_details(vif_type(row))
    if ctx.may("get_port:binding:profile"):
        shown["binding:profile"] = orjson.loads(row["profile"])
    return shown
