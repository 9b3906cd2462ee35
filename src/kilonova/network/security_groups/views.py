"""The views of a security group and of its rules."""

from __future__ import annotations

from typing import Any

from kilonova.network import resources
from kilonova.network.security_groups.rules import normalized_cidr
from kilonova.store import Row


def group_view(row: Row, group_rules: list[Row]) -> dict[str, Any]:
    return {
        "id": row["id"],
        "name": row["name"],
        "stateful": row["stateful"],
        "shared": False,
        "security_group_rules": [rule_view(rule) for rule in group_rules],
        **resources.standard_view(row),
    }


def rule_view(row: Row) -> dict[str, Any]:
    return {
        "id": row["id"],
        "security_group_id": row["security_group_id"],
        "direction": row["direction"],
        "ethertype": row["ethertype"],
        "protocol": row["protocol"],
        "port_range_min": row["port_range_min"],
        "port_range_max": row["port_range_max"],
        "remote_ip_prefix": row["remote_ip_prefix"],
        "remote_group_id": row["remote_group_id"],
        "normalized_cidr": normalized_cidr(row["remote_ip_prefix"]),
        **resources.standard_view(row),
    }
