"""The view of a port."""

from __future__ import annotations

from kilonova.http import Context
from kilonova.network import resources
from kilonova.network.ports.model import BOUND, PortDetails, vif_type

VIF_DETAILS: dict[str, object] = {"port_filter": True, "connectivity": "l2", "bound_drivers": {"0": "kilonova"}}


def vif_details(kind: str) -> dict[str, object]:
    return VIF_DETAILS if kind == BOUND else {}


def view(ctx: Context, details: PortDetails) -> dict[str, object]:
    port = details.port
    vif = vif_type(port.host_id, port.vnic_type)
    shown: dict[str, object] = {
        "id": port.id,
        "name": port.name,
        "network_id": port.network_id,
        "mac_address": port.mac_address,
        "admin_state_up": port.admin_state_up,
        "status": port.status,
        "device_id": port.device_id,
        "device_owner": port.device_owner,
        "fixed_ips": [fixed.view() for fixed in details.fixed_ips],
        "security_groups": details.groups,
        "port_security_enabled": port.port_security_enabled,
        "allowed_address_pairs": port.allowed_address_pairs,
        "extra_dhcp_opts": port.extra_dhcp_opts,
        "ip_allocation": "immediate" if details.fixed_ips else "none",
        "binding:vnic_type": port.vnic_type,
        **resources.standard_view(port),
    }
    if details.trunk is not None:
        shown["trunk_details"] = details.trunk
    if ctx.may("get_port:binding:host_id"):
        shown["binding:host_id"] = port.host_id
    if ctx.may("get_port:binding:vif_type"):
        shown["binding:vif_type"] = vif
    if ctx.may("get_port:binding:vif_details"):
        shown["binding:vif_details"] = vif_details(vif)
    if ctx.may("get_port:binding:profile"):
        shown["binding:profile"] = port.profile
    return shown
