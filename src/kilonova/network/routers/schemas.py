"""Bodies of the router routes."""

from __future__ import annotations

from kilonova.http.schema import Schema
from kilonova.network import schemas
from kilonova.network.ports.schemas import FIXED_IPS
from kilonova.network.schemas import BOOLEAN, TEXT, UUID, ZONE_HINTS
from kilonova.network.subnets.schemas import ROUTES

GATEWAY: Schema = {
    **schemas.object_schema(
        {"network_id": UUID, "enable_snat": BOOLEAN, "external_fixed_ips": FIXED_IPS, "qos_policy_id": {"type": "null"}}
    ),
    "type": ["object", "null"],
}
# Distributed and HA routers are not supported.
_UNSUPPORTED: Schema = {"enum": [False, None]}

_CHANGEABLE: Schema = {
    "name": TEXT,
    "admin_state_up": BOOLEAN,
    "external_gateway_info": GATEWAY,
    "distributed": _UNSUPPORTED,
    "ha": _UNSUPPORTED,
}
CREATE = schemas.create_body("router", "routers", {**_CHANGEABLE, "availability_zone_hints": ZONE_HINTS})
_ROUTES: Schema = {**ROUTES, "maxItems": 30}
UPDATE = schemas.update_body("router", {**_CHANGEABLE, "routes": {**_ROUTES, "type": ["array", "null"]}})
EXTRA_ROUTES = {
    **schemas.object_schema({"router": schemas.object_schema({"routes": _ROUTES}, ("routes",))}),
    "required": ["router"],
}
INTERFACE = {**schemas.object_schema({"subnet_id": UUID, "port_id": UUID}), "minProperties": 1, "maxProperties": 1}
