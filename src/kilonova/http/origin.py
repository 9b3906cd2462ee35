"""Where a request comes from: the client's address, and the scheme and host that it used, also behind proxies.

Anybody can send `X-Forwarded-*` headers. They count only in requests that come from a trusted proxy.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, NamedTuple

Address = IPv4Address | IPv6Address
Networks = tuple[IPv4Network | IPv6Network, ...]

# A client that has one address of an IPv6 network of this size has them all, so they count as one client.
IPV6_PREFIX_LENGTH = 64

_HOST = re.compile(r"[A-Za-z0-9._-]{1,253}(:\d{1,5})?|\[[0-9A-Fa-f:.]{2,45}\](:\d{1,5})?")
_WITH_PORT = re.compile(r"\[([^\]]+)\](?::\d+)?|([\d.]+):\d+")


class Origin(NamedTuple):
    """`address` is empty for calls inside the process."""

    address: str = ""
    scheme: str = "http"
    host: str = "localhost"


def group_of(address: str) -> str:
    """What limits per address count: the address, or the network of an IPv6 address."""
    if ":" not in address:
        return address
    found = IPv6Address(address.partition("%")[0])
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ip_network((found, IPV6_PREFIX_LENGTH), strict=False))


@lru_cache(maxsize=16)
def parse_proxies(listed: tuple[str, ...]) -> Networks:
    """The networks of the setting `trusted_proxies`. Raises ValueError."""
    return tuple(map(ip_network, listed))


def request_origin(scope: Mapping[str, Any], headers: Mapping[str, str], trusted_proxies: Sequence[str]) -> Origin:
    """The origin of a request. A repeated header has its values joined by commas in `headers`."""
    peer = scope.get("client")
    direct = Origin(
        peer[0] if peer else "", _SCHEMES.get(scope.get("scheme", ""), "http"), headers.get("host", "localhost")
    )
    if not trusted_proxies or not peer:
        return direct
    proxies = parse_proxies(tuple(trusted_proxies))
    address = _parse_address(peer[0])
    if address is None or not _contains(proxies, address):
        return direct
    scheme, host = _last(headers, "x-forwarded-proto").lower(), _last(headers, "x-forwarded-host")
    return Origin(
        str(_client_address(address, headers.get("x-forwarded-for", ""), proxies)),
        scheme if scheme in ("http", "https") else direct.scheme,
        host if _HOST.fullmatch(host) else direct.host,
    )


# Websockets have schemes of their own.
_SCHEMES = {"https": "https", "wss": "https"}


def _client_address(peer: Address, forwarded_for: str, proxies: Networks) -> Address:
    """The last address that is no proxy. Each proxy appends the address that it saw; the rest is the client's claim."""
    client = peer
    for entry in reversed(forwarded_for.split(",")):
        address = _parse_address(entry.strip())
        if address is None:
            break
        client = address
        if not _contains(proxies, client):
            break
    return client


def _last(headers: Mapping[str, str], name: str) -> str:
    """The value that the nearest proxy wrote."""
    return headers.get(name, "").rpartition(",")[2].strip()


def _parse_address(text: str) -> Address | None:
    if with_port := _WITH_PORT.fullmatch(text):
        text = with_port[1] or with_port[2]
    try:
        address = ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _contains(proxies: Networks, address: Address) -> bool:
    return any(address in network for network in proxies)
