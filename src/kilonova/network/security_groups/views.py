"""The views of a security group and of its rules."""

from __future__ import annotations

from kilonova.network import resources
from kilonova.network.security_groups.model import SecurityGroup
from kilonova.network.security_groups.rules import SecurityGroupRule, normalized_cidr


def group_view(group: SecurityGroup, group_rules: list[SecurityGroupRule]) -> dict[str, object]:
    return {
        "id": group.id,
        "name": group.name,
        "stateful": group.stateful,
        "shared": False,
        "security_group_rules": [rule_view(rule) for rule in group_rules],
        **resources.standard_view(group),
    }


def rule_view(rule: SecurityGroupRule) -> dict[str, object]:
    return {
        "id": rule.id,
        "security_group_id": rule.security_group_id,
        "direction": rule.direction,
        "ethertype": rule.ethertype,
        "protocol": rule.protocol,
        "port_range_min": rule.port_range_min,
        "port_range_max": rule.port_range_max,
        "remote_ip_prefix": rule.remote_ip_prefix,
        "remote_group_id": rule.remote_group_id,
        "normalized_cidr": normalized_cidr(rule.remote_ip_prefix),
        **resources.standard_view(rule),
    }
