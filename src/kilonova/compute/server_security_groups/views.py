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
        "rules": [rule(each, named) for each in incoming],
    }


def rule(found: Item, named: dict[str, Item]) -> Item:
    remote = named.get(found["remote_group_id"] or "")
    cidr = found["remote_ip_prefix"] or ("::/0" if found["ethertype"] == "IPv6" else "0.0.0.0/0")
    low, high = _ports(found)
    return {
        "id": found["id"],
        "parent_group_id": found["security_group_id"],
        "ip_protocol": found["protocol"],
        "from_port": low,
        "to_port": high,
        "group": {"name": remote["name"], "tenant_id": remote["project_id"]} if remote else {},
        "ip_range": {} if found["remote_group_id"] else {"cidr": cidr},
    }


def _ports(found: Item) -> tuple[int | None, int | None]:
    """A rule for all ports, or all kinds of ICMP, said so by numbers."""
    low, high = found["port_range_min"], found["port_range_max"]
    if low is None and high is None and found["protocol"]:
        return (1, 65535) if found["protocol"] in ("tcp", "udp") else (-1, -1)
    return low, high
