"""What requests about ports look like."""

from __future__ import annotations

from kilonova.network import schema
from kilonova.network.schema import BOOLEAN, IP, MAC, TEXT, UUID, Schema

VNIC_TYPES = (
    "normal",
    "direct",
    "macvtap",
    "direct-physical",
    "baremetal",
    "virtio-forwarder",
    "smart-nic",
    "vdpa",
    "accelerator-direct",
    "accelerator-direct-physical",
    "remote-managed",
)
# As many as the Networking API allows by default.
FIXED_IPS_MAX = 5
FIXED_IPS: Schema = {
    "type": ["array", "null"],
    "maxItems": FIXED_IPS_MAX,
    "items": {**schema.resource({"subnet_id": UUID, "ip_address": IP}), "minProperties": 1},
}
ADDRESS_PAIRS: Schema = {
    "type": ["array", "null"],
    "maxItems": 10,
    "items": schema.resource({"ip_address": {"anyOf": [IP, schema.CIDR]}, "mac_address": MAC}, ("ip_address",)),
}
DHCP_OPTIONS: Schema = {
    "type": ["array", "null"],
    "maxItems": 64,
    "items": schema.resource(
        {
            "opt_name": {"type": "string", "minLength": 1, "maxLength": 64},
            "opt_value": {"type": ["string", "null"], "maxLength": 255},
            "ip_version": {"enum": [4, 6, "4", "6"]},
        },
        ("opt_name", "opt_value"),
    ),
}

_CHANGEABLE: Schema = {
    "name": TEXT,
    "admin_state_up": BOOLEAN,
    "device_id": TEXT,
    "device_owner": TEXT,
    "mac_address": MAC,
    "fixed_ips": FIXED_IPS,
    "security_groups": {"type": ["array", "null"], "items": UUID, "maxItems": 100},
    "port_security_enabled": BOOLEAN,
    "allowed_address_pairs": ADDRESS_PAIRS,
    "extra_dhcp_opts": DHCP_OPTIONS,
    "binding:host_id": {"type": ["string", "null"], "maxLength": 255},
    "binding:vnic_type": {"enum": list(VNIC_TYPES)},
    "binding:profile": {"type": ["object", "null"]},
}

CREATE = schema.create("port", "ports", {**_CHANGEABLE, "network_id": UUID}, ("network_id",))
UPDATE = schema.update("port", _CHANGEABLE)
