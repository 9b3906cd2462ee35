"""The address of a request's client. Behind a trusted proxy it is what the proxy says."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from typing import Any

# Whoever has one address of an IPv6 network of this size has them all, so they count as one client.
IPV6_PREFIX_LENGTH = 64

_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def parse_networks(texts: Iterable[str]) -> tuple[_Network, ...]:
    """Addresses and prefixes as networks. Raises ValueError."""
    return tuple(ipaddress.ip_network(text, strict=False) for text in texts)


def client_address(scope: Mapping[str, Any], headers: Mapping[str, str], trusted: tuple[_Network, ...]) -> str | None:
    """The client's address; None for requests of this process to itself.

    `X-Forwarded-For` ends with the client of the last proxy. An address is believed only if a trusted proxy added it.
    """
    peer = scope.get("client")
    if peer is None:
        return None
    address: str = peer[0]
    if trusted and (forwarded := headers.get("x-forwarded-for")):
        for part in reversed(forwarded.split(",")):
            if not _is_trusted(address, trusted):
                break
            try:
                address = str(ipaddress.ip_address(part.strip()))
            except ValueError:
                break
    return address


def group_of(address: str) -> str:
    """What limits per address count: the address, or the network of an IPv6 address."""
    if ":" not in address:
        return address
    found = ipaddress.IPv6Address(address.partition("%")[0])
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((found, IPV6_PREFIX_LENGTH), strict=False))


def _is_trusted(address: str, trusted: tuple[_Network, ...]) -> bool:
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    return any(found in network for network in trusted)
