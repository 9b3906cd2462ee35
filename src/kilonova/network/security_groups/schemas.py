"""Bodies of the routes of security groups and their rules."""

from __future__ import annotations

from kilonova.http.schema import Schema
from kilonova.network import schemas
from kilonova.network.schemas import BOOLEAN, TEXT, UUID

_CHANGEABLE: Schema = {"name": TEXT, "stateful": BOOLEAN}
CREATE = schemas.create_body("security_group", "security_groups", _CHANGEABLE)
UPDATE = schemas.update_body("security_group", _CHANGEABLE)

# The range depends on the protocol and is checked in `rules`.
_FIVE_DIGITS: Schema = {"minimum": -99999, "maximum": 99999, "pattern": "^-?[0-9]{1,5}$"}
_PORT: Schema = {"type": ["integer", "string", "null"], **_FIVE_DIGITS}
CREATE_RULE = schemas.create_body(
    "security_group_rule",
    "security_group_rules",
    {
        "security_group_id": UUID,
        "direction": {"enum": ["ingress", "egress"]},
        "ethertype": {"enum": ["IPv4", "IPv6", "ipv4", "ipv6", "IPV4", "IPV6", None]},
        "protocol": {"type": ["string", "integer", "null"], "maxLength": 40},
        "port_range_min": _PORT,
        "port_range_max": _PORT,
        "remote_ip_prefix": {"type": ["string", "null"], "format": "cidr"},
        "remote_group_id": {"type": ["string", "null"], "maxLength": 36},
        "remote_address_group_id": {"type": "null"},
    },
    ("security_group_id", "direction"),
)
