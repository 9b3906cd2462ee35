"""Allocation and release of the fixed IPs of a port."""

from __future__ import annotations

import ipaddress
from typing import Any

from kilonova.http.errors import Unavailable
from kilonova.network import addresses
from kilonova.network.addresses import IpAddress, IpNetwork
from kilonova.network.errors import address_in_use, invalid, no_more_addresses
from kilonova.network.subnets.model import is_autoconfigured
from kilonova.store import Row, Transaction

FixedIp = dict[str, str]
_RELEASE = "DELETE FROM port_addresses WHERE subnet_id = $1 AND ip_address = $2 AND port_id = $3"


async def assign_fixed_ips(
    tx: Transaction, port: Row, subnets: list[Row], requests: list[dict[str, Any]] | None, position: int = 0
) -> list[FixedIp]:
    """Allocate the requested addresses, or by default one of each IP version that the network has."""
    try:
        if requests is None:
            return await _one_per_version(tx, port, subnets, position)
        assigned: list[FixedIp] = []
        for request in requests:
            assigned.append(await _allocate(tx, port, subnets, request, position + len(assigned)))
        return assigned
    except addresses.AllocationContended:
        raise Unavailable("Too many ports are being created in this subnet at once; try again.") from None


async def replace_fixed_ips(
    tx: Transaction, port: Row, subnets: list[Row], held: list[FixedIp], requests: list[dict[str, Any]]
) -> list[FixedIp]:
    """Change the port's addresses. Addresses that match a request stay, so that a repeated update changes nothing."""
    kept, missing = _match_requests(held, requests)
    for fixed in held:
        if fixed not in kept:
            await tx.execute(_RELEASE, fixed["subnet_id"], fixed["ip_address"], port["id"])
    # Positions only order the list; gaps do not matter.
    return kept + await assign_fixed_ips(tx, port, subnets, missing, position=len(held))


def _match_requests(held: list[FixedIp], requests: list[dict[str, Any]]) -> tuple[list[FixedIp], list[dict[str, Any]]]:
    free = list(held)
    kept: list[FixedIp] = []
    missing: list[dict[str, Any]] = []
    for request in sorted(requests, key=lambda request: "ip_address" not in request):
        matching = next((fixed for fixed in free if matches(fixed, request)), None)
        if matching is None:
            missing.append(request)
        else:
            free.remove(matching)
            kept.append(matching)
    return kept, missing


def matches(fixed: FixedIp, request: dict[str, Any]) -> bool:
    if "subnet_id" in request and request["subnet_id"] != fixed["subnet_id"]:
        return False
    if "ip_address" in request:
        return ipaddress.ip_address(request["ip_address"]) == ipaddress.ip_address(fixed["ip_address"])
    return True


async def _one_per_version(tx: Transaction, port: Row, subnets: list[Row], position: int) -> list[FixedIp]:
    assigned: list[FixedIp] = []
    for version in (4, 6):
        pooled = [subnet for subnet in subnets if subnet["ip_version"] == version and not is_autoconfigured(subnet)]
        if pooled:
            assigned.append(await _allocate_from_first(tx, port, pooled, position + len(assigned)))
    for subnet in subnets:
        if is_autoconfigured(subnet):
            assigned.append(await _autoconfigure(tx, port, subnet, position + len(assigned)))
    return assigned


async def _allocate_from_first(tx: Transaction, port: Row, subnets: list[Row], position: int) -> FixedIp:
    """Allocate an address of the first subnet that has a free one."""
    for subnet in subnets:
        try:
            ip = await addresses.allocate_any(tx, subnet, port["id"], position)
        except addresses.PoolsExhausted:
            continue
        return {"subnet_id": subnet["id"], "ip_address": ip}
    raise no_more_addresses(port["network_id"])


async def _autoconfigure(tx: Transaction, port: Row, subnet: Row, position: int) -> FixedIp:
    ip = addresses.eui64_address(addresses.ip_network_of(subnet), port["mac_address"])
    return await _allocate_exactly(tx, port, subnet, ip, position)


def _may_use_gateway_ip(port: Row, subnet: Row) -> bool:
    """A port of another project with the gateway's address would receive all traffic of a shared network."""
    return bool(port["project_id"] == subnet["project_id"] or port["device_owner"].startswith("network:"))


async def _allocate(tx: Transaction, port: Row, subnets: list[Row], request: dict[str, Any], position: int) -> FixedIp:
    if "ip_address" not in request:
        subnet = _subnet(port, subnets, request["subnet_id"])
        if is_autoconfigured(subnet):
            return await _autoconfigure(tx, port, subnet, position)
        return await _allocate_from_first(tx, port, [subnet], position)
    ip = ipaddress.ip_address(request["ip_address"])
    if "subnet_id" in request:
        subnet = _subnet(port, subnets, request["subnet_id"])
        if not _is_usable(addresses.ip_network_of(subnet), ip):
            raise invalid(f"IP address {ip} is not a valid IP for the specified subnet.", "InvalidIpForSubnet")
    else:
        subnet = _subnet_containing(subnets, ip)
    if str(ip) == subnet["gateway_ip"] and not _may_use_gateway_ip(port, subnet):
        raise invalid(f"IP address {ip} is the gateway of subnet {subnet['id']}.", "InvalidIpForSubnet")
    return await _allocate_exactly(tx, port, subnet, ip, position)


async def _allocate_exactly(tx: Transaction, port: Row, subnet: Row, ip: IpAddress, position: int) -> FixedIp:
    if not await addresses.allocate(tx, subnet, ip, port["id"], position):
        raise address_in_use(str(ip), subnet["id"])
    return {"subnet_id": subnet["id"], "ip_address": str(ip)}


def _subnet(port: Row, subnets: list[Row], subnet_id: str) -> Row:
    for subnet in subnets:
        if subnet["id"] == subnet_id:
            return subnet
    raise invalid(
        f"Failed to create port on network {port['network_id']}, because fixed_ips included invalid subnet {subnet_id}"
    )


def _subnet_containing(subnets: list[Row], ip: IpAddress) -> Row:
    for subnet in subnets:
        if _is_usable(addresses.ip_network_of(subnet), ip):
            return subnet
    raise invalid(
        f"IP address {ip} is not a valid IP for any of the subnets on the specified network.", "InvalidIpForNetwork"
    )


def _is_usable(network: IpNetwork, ip: IpAddress) -> bool:
    return getattr(ip, "scope_id", None) is None and addresses.is_usable(network, ip)
