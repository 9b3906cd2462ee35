"""Allocation of IP addresses to ports.

The primary key (subnet, address) decides which port gets an address; a cursor per subnet only proposes the next one. So
an allocation usually costs a single insert, and a released address is reused only after the rest of the pool.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

from msgspec import Struct

from kilonova.store import Transaction

if TYPE_CHECKING:
    from kilonova.network.subnets.model import Subnet

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
IpNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network
# By subnet, the slot to propose next. They belong to `Services`, one dict per process.
Cursors = dict[str, int]

# A slot is an address's offset in its subnet, a BIGINT: larger offsets of huge IPv6 subnets are never proposed.
MAX_SLOTS = 2**63 - 1
MAX_ATTEMPTS = 64

_INSERT = """
INSERT INTO port_addresses (subnet_id, ip_address, slot, port_id, position) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT DO NOTHING
"""
_LAST_SLOT = "SELECT max(slot) FROM port_addresses WHERE subnet_id = $1 AND slot BETWEEN $2 AND $3"
_IS_TAKEN = "SELECT 1 FROM port_addresses WHERE subnet_id = $1 AND slot = $2"
_NEXT_FREE = """
SELECT a.slot + 1 FROM port_addresses a
WHERE a.subnet_id = $1 AND a.slot >= $2 AND a.slot < $3
  AND NOT EXISTS (SELECT 1 FROM port_addresses b WHERE b.subnet_id = $1 AND b.slot = a.slot + 1)
ORDER BY a.slot LIMIT 1
"""


class Pool(Struct, frozen=True):
    """An allocation pool of a subnet: the addresses from `start` to `end`."""

    start: str
    end: str


class PoolsExhausted(Exception):
    """Every address of the subnet's pools is in use."""


class AllocationContended(Exception):
    """Other requests took the proposed address too many times in a row; the caller may try again."""


async def allocate(tx: Transaction, subnet: Subnet, ip: IpAddress, port_id: str, position: int) -> bool:
    """Allocate this address to the port; False if another port has it."""
    network = ip_network(subnet.cidr)
    slot = int(ip) - int(network.network_address)
    stored = slot if slot < MAX_SLOTS else None
    # Formatted from the number, so that each address has one spelling (no zone, no leading zeros).
    return bool(await tx.execute(_INSERT, subnet.id, str(network[slot]), stored, port_id, position))


async def allocate_any(tx: Transaction, cursors: Cursors, subnet: Subnet, port_id: str, position: int) -> str:
    """Allocate a free address of the subnet's pools to the port."""
    subnet_id = subnet.id
    network, ranges = _layout(subnet.cidr, subnet.allocation_pools)
    if not ranges:
        raise PoolsExhausted(subnet_id)
    slot = _nearest_slot(ranges, await _cursor(tx, cursors, subnet_id, ranges))
    for _ in range(MAX_ATTEMPTS):
        # Advanced before the insert is awaited, so that two requests of this process never propose the same address.
        cursors[subnet_id] = slot + 1
        ip = str(network[slot])
        if await tx.execute(_INSERT, subnet_id, ip, slot, port_id, position):
            return ip
        slot = await _first_free(tx, subnet_id, ranges, slot)
    raise AllocationContended(subnet_id)


async def _cursor(tx: Transaction, cursors: Cursors, subnet_id: str, ranges: list[tuple[int, int]]) -> int:
    known = cursors.get(subnet_id)
    if known is not None:
        return known
    last = await tx.fetch_value(_LAST_SLOT, subnet_id, ranges[0][0], ranges[-1][1])
    # Another request may have set the cursor meanwhile.
    return cursors.get(subnet_id, ranges[0][0] if last is None else last + 1)


def _nearest_slot(ranges: list[tuple[int, int]], slot: int) -> int:
    """The first slot of the pools at or after this one; past the end, the first slot of all."""
    for first, last in ranges:
        if slot <= last:
            return max(slot, first)
    return ranges[0][0]


async def _first_free(tx: Transaction, subnet_id: str, ranges: list[tuple[int, int]], taken: int) -> int:
    """The first free slot after a taken one, wrapping around once."""
    for first, last in _ranges_from(ranges, taken):
        if not await tx.fetch_value(_IS_TAKEN, subnet_id, first):
            return first
        free = await tx.fetch_value(_NEXT_FREE, subnet_id, first, last)
        if free is not None:
            return int(free)
    raise PoolsExhausted(subnet_id)


def _ranges_from(ranges: list[tuple[int, int]], slot: int) -> Iterator[tuple[int, int]]:
    for first, last in ranges:
        if last >= slot:
            yield max(first, slot), last
    for first, last in ranges:
        if first < slot:
            yield first, min(last, slot)


@lru_cache(maxsize=1024)
def ip_network(cidr: str) -> IpNetwork:
    return ipaddress.ip_network(cidr)


@lru_cache(maxsize=1024)
def _layout(cidr: str, pools: tuple[Pool, ...]) -> tuple[IpNetwork, list[tuple[int, int]]]:
    """Cached, because parsing costs as much as the rest of an allocation."""
    network = ip_network(cidr)
    base = int(network.network_address)
    slots = (
        (int(ipaddress.ip_address(pool.start)) - base, int(ipaddress.ip_address(pool.end)) - base) for pool in pools
    )
    return network, sorted((first, min(last, MAX_SLOTS - 1)) for first, last in slots if first < MAX_SLOTS)


def default_pools(network: IpNetwork, gateway: IpAddress | None) -> tuple[Pool, ...]:
    """All usable addresses but the gateway's."""
    first, last = int(network.network_address), int(network.broadcast_address)
    if network.prefixlen < network.max_prefixlen - 1:
        first += 1
        last -= network.version == 4
    make = type(network.network_address)
    ranges = [(first, last)]
    if gateway is not None and first <= int(gateway) <= last:
        ranges = [(first, int(gateway) - 1), (int(gateway) + 1, last)]
    return tuple(Pool(str(make(low)), str(make(high))) for low, high in ranges if low <= high)


def is_usable(network: IpNetwork, ip: IpAddress) -> bool:
    """Whether a port may have the address: in the subnet, and neither its first nor its (IPv4) broadcast address."""
    if ip.version != network.version or ip not in network:
        return False
    if network.prefixlen >= network.max_prefixlen - 1:
        return True
    if ip == network.network_address:
        return False
    return network.version == 6 or ip != network.broadcast_address


def eui64_address(network: IpNetwork, mac: str) -> IpAddress:
    """The EUI-64 address of a MAC address in an autoconfigured IPv6 subnet."""
    octets = bytes.fromhex(mac.replace(":", ""))
    suffix = bytes([octets[0] ^ 2, *octets[1:3], 0xFF, 0xFE, *octets[3:]])
    return network[int.from_bytes(suffix, "big")]
