"""Bodies and query keys of security groups and their rules. These routes ended before any refused unknown keys."""

from __future__ import annotations

from kilonova.http.pagination import LIMIT
from kilonova.http.pieces import STRING, UUID, Schema

TEXT: Schema = {**STRING, "maxLength": 255}
# Minus one stands for every type or code of ICMP.
PORT: Schema = {
    "anyOf": [
        {"type": "integer", "minimum": -1, "maximum": 65535},
        {"type": "string", "pattern": "^(-1|[0-9]{1,5})$"},
        {"type": "null"},
    ]
}


def _open(name: str, properties: Schema, required: list[str]) -> Schema:
    inner = {"type": "object", "properties": properties, "required": required}
    return {"type": "object", "properties": {name: inner}, "required": [name]}


LIST: dict[str, Schema] = {"limit": LIMIT, "offset": LIMIT, "all_tenants": STRING, "*": {}}
GROUP = _open("security_group", {"name": TEXT, "description": TEXT}, ["name", "description"])
RULE = _open(
    "security_group_rule",
    {
        "parent_group_id": UUID,
        "group_id": {"type": ["string", "null"], "format": "uuid"},
        "ip_protocol": {"type": ["string", "integer", "null"]},
        "from_port": PORT,
        "to_port": PORT,
        "cidr": {"type": ["string", "null"], "format": "cidr"},
    },
    ["parent_group_id"],
)
