"""What requests about floating addresses look like."""

from __future__ import annotations

from kilonova.network import schema
from kilonova.network.schema import IP_OR_NULL, UUID, UUID_OR_NULL, Schema

_CHANGEABLE: Schema = {"port_id": UUID_OR_NULL, "fixed_ip_address": IP_OR_NULL}
CREATE = schema.create(
    "floatingip",
    "floatingips",
    {**_CHANGEABLE, "floating_network_id": UUID, "floating_ip_address": IP_OR_NULL, "subnet_id": UUID_OR_NULL},
    ("floating_network_id",),
)
UPDATE = schema.update("floatingip", _CHANGEABLE)
