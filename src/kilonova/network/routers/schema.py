"""What requests about routers look like."""

from __future__ import annotations

from kilonova.network import schema
from kilonova.network.ports.schema import FIXED_IPS
from kilonova.network.schema import BOOLEAN, TEXT, UUID, ZONES, Schema
from kilonova.network.subnets.schema import ROUTES

GATEWAY: Schema = {
    **schema.resource(
        {"network_id": UUID, "enable_snat": BOOLEAN, "external_fixed_ips": FIXED_IPS, "qos_policy_id": {"type": "null"}}
    ),
    "type": ["object", "null"],
}
# Routers of other kinds than a plain one are not offered; saying so is no error.
_PLAIN: Schema = {"enum": [False, None]}

_CHANGEABLE: Schema = {
    "name": TEXT,
    "admin_state_up": BOOLEAN,
    "external_gateway_info": GATEWAY,
    "distributed": _PLAIN,
    "ha": _PLAIN,
}
CREATE = schema.create("router", "routers", {**_CHANGEABLE, "availability_zone_hints": ZONES})
_ROUTES: Schema = {**ROUTES, "maxItems": 30}
UPDATE = schema.update("router", {**_CHANGEABLE, "routes": {**_ROUTES, "type": ["array", "null"]}})
EXTRA_ROUTES = {
    **schema.resource({"router": schema.resource({"routes": _ROUTES}, ("routes",))}),
    "required": ["router"],
}
INTERFACE = {**schema.resource({"subnet_id": UUID, "port_id": UUID}), "minProperties": 1, "maxProperties": 1}
