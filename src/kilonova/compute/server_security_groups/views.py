"""How security groups were shown when compute kept them, made of what the network service says."""

from __future__ import annotations

from typing import Any

Item = dict[str, Any]


def group(found: Item, named: dict[str, Item]) -> Item:
    """Only what comes in was ever shown. `named`: the groups that rules may speak of."""
    incoming = [each for each in found["security_group_rules"] if each["direction"] == "ingress"]
    return {
        "id": found["id"],
        "name": found["name"],
        "description": found["description"],
        "tenant_id": found["project_id"],
        "rules": [_rule(each, named) for each in incoming],
    }


def _rule(rule: Item, named: dict[str, Item]) -> Item:
    remote = named.get(rule["remote_group_id"] or "")
    cidr = rule["remote_ip_prefix"] or ("::/0" if rule["ethertype"] == "IPv6" else "0.0.0.0/0")
    return {
        "id": rule["id"],
        "parent_group_id": rule["security_group_id"],
        "ip_protocol": rule["protocol"],
        "from_port": rule["port_range_min"],
        "to_port": rule["port_range_max"],
        "group": {"name": remote["name"], "tenant_id": remote["project_id"]} if remote else {},
        "ip_range": {} if rule["remote_group_id"] else {"cidr": cidr},
    }
