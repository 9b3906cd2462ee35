"""Records and validation of security group rules."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Any, ClassVar

from kilonova.network import resources
from kilonova.network.errors import invalid
from kilonova.network.resources import Resource

PROTOCOLS = {
    "ah": 51,
    "dccp": 33,
    "egp": 8,
    "esp": 50,
    "gre": 47,
    "hopopt": 0,
    "icmp": 1,
    "icmpv6": 58,
    "igmp": 2,
    "ip": 0,
    "ipip": 4,
    "ipv6-encap": 41,
    "ipv6-frag": 44,
    "ipv6-icmp": 58,
    "ipv6-nonxt": 59,
    "ipv6-opts": 60,
    "ipv6-route": 43,
    "ospf": 89,
    "pgm": 113,
    "rsvp": 46,
    "sctp": 132,
    "tcp": 6,
    "udp": 17,
    "udplite": 136,
    "vrrp": 112,
}
_PROTOCOLS_WITH_PORTS = {6, 17, 33, 132, 136}
_ICMP_PROTOCOLS = {1, 58}
_IPV6_PROTOCOLS = {"icmpv6", "ipv6-icmp", "ipv6-encap", "ipv6-frag", "ipv6-nonxt", "ipv6-opts", "ipv6-route"}


class SecurityGroupRule(Resource, frozen=True):
    table: ClassVar[str] = "security_group_rules"

    security_group_id: str
    remote_group_id: str | None
    direction: str
    ethertype: str
    protocol: str | None
    port_range_min: int | None
    port_range_max: int | None
    remote_ip_prefix: str | None

    @property
    def content(self) -> tuple[str | int | None, ...]:
        """Rules of a group with the same content are equal."""
        ports = self.port_range_min, self.port_range_max
        return self.direction, self.ethertype, self.protocol, *ports, self.remote_ip_prefix, self.remote_group_id


def new_rule(project_id: str, body: Mapping[str, Any], now: float) -> SecurityGroupRule:
    prefix = _prefix(body)
    ethertype = _ethertype(body, prefix)
    protocol = _protocol(body.get("protocol"), ethertype)
    low, high = _port_range(body, protocol)
    if prefix and body.get("remote_group_id"):
        raise invalid(
            "Only remote_ip_prefix or remote_group_id may be provided.", "SecurityGroupRemoteGroupAndRemoteIpPrefix"
        )
    return SecurityGroupRule(
        **resources.standard_columns(project_id, body, now),
        security_group_id=body["security_group_id"],
        remote_group_id=body.get("remote_group_id"),
        direction=body["direction"],
        ethertype=ethertype,
        protocol=protocol,
        port_range_min=low,
        port_range_max=high,
        remote_ip_prefix=prefix,
    )


def _prefix(body: Mapping[str, Any]) -> str | None:
    text = body.get("remote_ip_prefix")
    return str(ipaddress.ip_interface(text)) if text else None


def normalized_cidr(prefix: str | None) -> str | None:
    """The prefix without host bits, which `remote_ip_prefix` keeps as the client sent them."""
    return str(ipaddress.ip_network(prefix, strict=False)) if prefix else None


def _ethertype(body: Mapping[str, Any], prefix: str | None) -> str:
    ethertype = "IPv6" if str(body.get("ethertype")).lower() == "ipv6" else "IPv4"
    if prefix and (":" in prefix) != (ethertype == "IPv6"):
        raise invalid(
            f"Conflicting value ethertype {ethertype} for CIDR {body['remote_ip_prefix']}",
            "SecurityGroupRuleParameterConflict",
        )
    return ethertype


def _protocol(given: str | int | None, ethertype: str) -> str | None:
    if given is None or str(given).lower() in ("any", ""):
        return None
    name = str(given).lower()
    if not (name in PROTOCOLS or (name.isascii() and name.isdigit() and int(name) <= 255)):
        raise invalid(
            f"Security group rule protocol {given} not supported. Only protocol values {sorted(PROTOCOLS)} and integer "
            "representations [0 to 255] are supported.",
            "SecurityGroupRuleInvalidProtocol",
        )
    if name in _IPV6_PROTOCOLS and ethertype == "IPv4":
        raise invalid(
            f"Invalid ethertype {ethertype} for protocol {given}.", "SecurityGroupEthertypeConflictWithProtocol"
        )
    return name


def _port_range(body: Mapping[str, Any], protocol: str | None) -> tuple[int | None, int | None]:
    low, high = (
        None if body.get(key) in (None, "") else int(body[key]) for key in ("port_range_min", "port_range_max")
    )
    if low is None and high is None:
        return None, None
    number = PROTOCOLS.get(protocol, int(protocol) if protocol.isdigit() else -1) if protocol else -1
    if number in _ICMP_PROTOCOLS:
        return _icmp_type_and_code(low, high)
    if protocol is None:
        raise invalid("Must also specify protocol if port range is given.", "SecurityGroupProtocolRequiredWithPorts")
    if number not in _PROTOCOLS_WITH_PORTS:
        raise invalid(f"Port range may not be given for protocol {protocol}.", "SecurityGroupInvalidProtocolForPort")
    for value in (low, high):
        if value is not None and not 1 <= value <= 65535:
            raise invalid(f"Invalid value for port {value}", "SecurityGroupInvalidPortValue")
    if low is None or high is None or low > high:
        raise invalid(
            "For TCP/UDP protocols, port_range_min must be <= port_range_max", "SecurityGroupInvalidPortRange"
        )
    return low, high


def _icmp_type_and_code(low: int | None, high: int | None) -> tuple[int | None, int | None]:
    """ICMP type and code, which clients send in place of ports."""
    for field, value in (("type (port-range-min)", low), ("code (port-range-max)", high)):
        if value is not None and not 0 <= value <= 255:
            raise invalid(
                f"Invalid value for ICMP {field} {value}. It must be 0 to 255.", "SecurityGroupInvalidIcmpValue"
            )
    if low is None:
        raise invalid(
            f"ICMP code (port-range-max) {high} is provided but ICMP type (port-range-min) is missing.",
            "SecurityGroupMissingIcmpType",
        )
    return low, high
