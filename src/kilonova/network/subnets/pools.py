"""Checks of a subnet's allocation pools and gateway."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from itertools import pairwise

from kilonova.network.addresses import IpAddress, IpNetwork, Pool, is_usable
from kilonova.network.errors import conflict, invalid

_BROADCAST = ipaddress.IPv4Address("255.255.255.255")


def check_pools(network: IpNetwork, pools: Sequence[Pool]) -> tuple[Pool, ...]:
    """The pools in order. Refuses pools that are outside the subnet or overlap."""
    ranges: list[tuple[int, int, Pool]] = []
    for pool in pools:
        start, end = ipaddress.ip_address(pool.start), ipaddress.ip_address(pool.end)
        if start.version != network.version or end.version != network.version or int(start) > int(end):
            raise invalid(f"The allocation pool {pool.start}-{pool.end} is not valid.", "InvalidAllocationPool")
        if not (is_usable(network, start) and is_usable(network, end)):
            raise invalid(
                f"The allocation pool {start}-{end} spans beyond the subnet cidr {network}.",
                "OutOfBoundsAllocationPool",
            )
        ranges.append((int(start), int(end), Pool(str(start), str(end))))
    ranges.sort(key=lambda pool: pool[0])
    for (_, last, pool), (first, _, following) in pairwise(ranges):
        if first <= last:
            raise conflict(
                "OverlappingAllocationPools",
                f"Found overlapping allocation pools: {pool.start}-{pool.end} and "
                f"{following.start}-{following.end} for subnet {network}.",
            )
    return tuple(pool for _, _, pool in ranges)


def check_gateway(network: IpNetwork, gateway: IpAddress | None, pools: Sequence[Pool]) -> None:
    if gateway is None:
        return
    if gateway.version != network.version:
        raise invalid(f"gateway_ip '{gateway}' does not match the ip_version '{network.version}'")
    # The gateway may be outside the subnet: guests reach it on their link.
    if gateway in network and not is_usable(network, gateway):
        raise invalid(f"Gateway IP address {gateway} is not usable in the subnet {network}", "GatewayIpInvalid")
    if gateway.is_unspecified or gateway.is_loopback or gateway.is_multicast or gateway == _BROADCAST:
        raise invalid(
            f"Gateway IP address {gateway} is not valid: expected the address of a host, not an unspecified, loopback, "
            "multicast or broadcast address",
            "GatewayIpInvalid",
        )
    for pool in pools:
        if int(ipaddress.ip_address(pool.start)) <= int(gateway) <= int(ipaddress.ip_address(pool.end)):
            raise conflict(
                "GatewayConflictWithAllocationPools",
                f"Gateway ip {gateway} conflicts with allocation pool {pool.start}-{pool.end}.",
            )
