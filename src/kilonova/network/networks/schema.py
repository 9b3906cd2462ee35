"""What requests about networks look like."""

from __future__ import annotations

from kilonova.network import schema
from kilonova.network.schema import BOOLEAN, TEXT, ZONES, Schema

TYPES = ("local", "flat", "vlan", "vxlan", "gre", "geneve")
MTU: Schema = {"type": "integer", "minimum": 0, "maximum": 65535}

_CHANGEABLE: Schema = {
    "name": TEXT,
    "admin_state_up": BOOLEAN,
    "shared": BOOLEAN,
    "router:external": BOOLEAN,
    "is_default": BOOLEAN,
    "mtu": MTU,
    "port_security_enabled": BOOLEAN,
}

CREATE = schema.create(
    "network",
    "networks",
    {
        **_CHANGEABLE,
        "provider:network_type": {"enum": [*TYPES, None]},
        "provider:physical_network": {"type": ["string", "null"], "maxLength": 255},
        "provider:segmentation_id": {"type": ["integer", "null"], "minimum": 1, "maximum": 2**24 - 1},
        "availability_zone_hints": ZONES,
    },
)
UPDATE = schema.update("network", _CHANGEABLE)
