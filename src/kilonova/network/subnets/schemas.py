"""Bodies of the subnet routes."""

from __future__ import annotations

from kilonova.http.schema import Schema
from kilonova.network import schemas
from kilonova.network.schemas import BOOLEAN, CIDR, IP, IP_OR_NULL, TEXT, UUID

MODES = ("slaac", "dhcpv6-stateful", "dhcpv6-stateless")
POOLS: Schema = {
    "type": "array",
    "maxItems": 64,
    "items": schemas.object_schema({"start": IP, "end": IP}, ("start", "end")),
}
ROUTES: Schema = {
    "type": "array",
    "maxItems": 20,
    "items": schemas.object_schema({"destination": CIDR, "nexthop": IP}, ("destination", "nexthop")),
}
NAMESERVERS: Schema = {"type": "array", "maxItems": 5, "items": IP, "uniqueItems": True}

_CHANGEABLE: Schema = {
    "name": TEXT,
    "gateway_ip": IP_OR_NULL,
    "allocation_pools": POOLS,
    "dns_nameservers": NAMESERVERS,
    "host_routes": ROUTES,
    "enable_dhcp": BOOLEAN,
}

CREATE = schemas.create_body(
    "subnet",
    "subnets",
    {
        **_CHANGEABLE,
        "network_id": UUID,
        "ip_version": {"enum": [4, 6, "4", "6"]},
        "cidr": CIDR,
        "ipv6_ra_mode": {"enum": [*MODES, None]},
        "ipv6_address_mode": {"enum": [*MODES, None]},
        # There are no subnet pools; clients send these attributes without a value.
        "subnetpool_id": {"type": "null"},
        "use_default_subnetpool": {"enum": [False, None]},
        "prefixlen": {"type": "null"},
    },
    ("network_id", "ip_version", "cidr"),
)
UPDATE = schemas.update_body("subnet", _CHANGEABLE)
