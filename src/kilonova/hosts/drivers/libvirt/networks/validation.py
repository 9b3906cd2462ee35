"""Validates the ids and addresses of a network plan, because they become part of scripts that run as root."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from kilonova.hosts.drivers.base import DriverError
from kilonova.hosts.messages import NetworkPlan, WiredNetwork, WiredPort, WiredSubnet

ID = re.compile(r"[0-9A-Za-z-]{1,64}")
MAC = re.compile(r"[0-9A-Fa-f]{2}(:[0-9A-Fa-f]{2}){5}")
_ADDRESS = re.compile(r"[0-9A-Fa-f:.]{2,45}(/[0-9]{1,3})?")

Checked = tuple[re.Pattern[str], str]


def validate(plan: NetworkPlan) -> None:
    """Raises DriverError. DHCP options and protocols of rules are validated where they are used."""
    check(_plan(plan), "the network plan", "an id or address")


def check(fields: Iterable[Checked], owner: str, expected: str) -> None:
    """Raises DriverError if a field does not match its pattern."""
    for pattern, text in fields:
        if not pattern.fullmatch(text):
            raise DriverError(f"{owner} has {text[:80]!r} in place of {expected}")


def _plan(plan: NetworkPlan) -> Iterator[Checked]:
    for members in plan.groups.values():
        yield from _addresses(members)
    for network in plan.networks:
        yield ID, network.id
        yield from _network(network)
        for subnet in network.subnets:
            yield from _subnet(subnet)
        for port in network.ports:
            yield from _port(port)


def _network(network: WiredNetwork) -> Iterator[Checked]:
    yield from _addresses(network.peers)
    for pair in network.floating:
        yield from _addresses(pair)
    for cidr, other in network.routed:
        yield _ADDRESS, cidr
        yield ID, other
    for destination, hop, other in network.routes:
        yield from _addresses((destination, hop))
        yield ID, other
    for mac, address in network.neighbours:
        yield MAC, mac
        yield _ADDRESS, address


def _subnet(subnet: WiredSubnet) -> Iterator[Checked]:
    yield _ADDRESS, subnet.cidr
    if subnet.gateway:
        yield _ADDRESS, subnet.gateway
    yield from _addresses(subnet.dns)
    yield from _addresses(subnet.held)
    for route in subnet.routes:
        yield from _addresses(route)


def _port(port: WiredPort) -> Iterator[Checked]:
    yield ID, port.id
    if port.parent:
        yield ID, port.parent
    yield MAC, port.mac
    yield from _addresses(port.addresses)
    for mac, prefix in port.pairs:
        yield MAC, mac
        yield _ADDRESS, prefix
    for rule in port.rules:
        yield from _addresses(rule.remotes)


def _addresses(texts: list[str] | tuple[str, str]) -> Iterator[Checked]:
    return ((_ADDRESS, text) for text in texts)
