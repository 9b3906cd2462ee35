"""Bodies of the port routes."""

from __future__ import annotations

from kilonova.http.schema import Schema
from kilonova.network import schemas
from kilonova.network.schemas import BOOLEAN, IP, MAC, TEXT, UUID

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
# Neutron's default.
MAX_FIXED_IPS = 5
FIXED_IPS: Schema = {
    "type": ["array", "null"],
    "maxItems": MAX_FIXED_IPS,
    "items": {**schemas.object_schema({"subnet_id": UUID, "ip_address": IP}), "minProperties": 1},
}
ADDRESS_PAIRS: Schema = {
    "type": ["array", "null"],
    "maxItems": 10,
    "items": schemas.object_schema({"ip_address": {"anyOf": [IP, schemas.CIDR]}, "mac_address": MAC}, ("ip_address",)),
}
DHCP_OPTIONS: Schema = {
    "type": ["array", "null"],
    "maxItems": 64,
    "items": schemas.object_schema(
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

CREATE = schemas.create_body("port", "ports", {**_CHANGEABLE, "network_id": UUID}, ("network_id",))
UPDATE = schemas.update_body("port", _CHANGEABLE)
