"""The fixed addresses of a port: which ones it asks for, gets, keeps and gives back."""

from __future__ import annotations

import ipaddress
from typing import Any

from kilonova.http.errors import Unavailable
from kilonova.network import addresses
from kilonova.network.addresses import IpAddress, IpNetwork
from kilonova.network.errors import address_taken, invalid, no_more_addresses
from kilonova.network.subnets.model import is_automatic
from kilonova.store import Row, Transaction

FixedIp = dict[str, str]
_RELEASE = "DELETE FROM port_addresses WHERE subnet_id = $1 AND ip_address = $2 AND port_id = $3"


async def assign(
    tx: Transaction, port: Row, subnets: list[Row], wanted: list[dict[str, Any]] | None, position: int = 0
) -> list[FixedIp]:
    """Give the port its addresses: those wanted, or one of each IP version that the network has."""
    try:
        if wanted is None:
            return await _one_of_each(tx, port, subnets, position)
        given: list[FixedIp] = []
        for wish in wanted:
            given.append(await _grant(tx, port, subnets, wish, position + len(given)))
        return given
    except addresses.Busy:
        raise Unavailable("Too many ports are being created in this subnet at once; try again.") from None


async def replace(
    tx: Transaction, port: Row, subnets: list[Row], held: list[FixedIp], wanted: list[dict[str, Any]]
) -> list[FixedIp]:
    """Change to the wanted addresses; one that fits a wish stays, so that a repeat changes nothing."""
    kept, missing = _match(held, wanted)
    for fixed in held:
        if fixed not in kept:
            await tx.execute(_RELEASE, fixed["subnet_id"], fixed["ip_address"], port["id"])
    # Positions only order the list; gaps that a released address leaves do not matter.
    return kept + await assign(tx, port, subnets, missing, position=len(held))


def _match(held: list[FixedIp], wanted: list[dict[str, Any]]) -> tuple[list[FixedIp], list[dict[str, Any]]]:
    free = list(held)
    kept: list[FixedIp] = []
    missing: list[dict[str, Any]] = []
    for wish in sorted(wanted, key=lambda wish: "ip_address" not in wish):
        fitting = next((fixed for fixed in free if fits(fixed, wish)), None)
        if fitting is None:
            missing.append(wish)
        else:
            free.remove(fitting)
            kept.append(fitting)
    return kept, missing


def fits(fixed: FixedIp, wish: dict[str, Any]) -> bool:
    if "subnet_id" in wish and wish["subnet_id"] != fixed["subnet_id"]:
        return False
    if "ip_address" in wish:
        return ipaddress.ip_address(wish["ip_address"]) == ipaddress.ip_address(fixed["ip_address"])
    return True


async def _one_of_each(tx: Transaction, port: Row, subnets: list[Row], position: int) -> list[FixedIp]:
    given: list[FixedIp] = []
    for version in (4, 6):
        pooled = [subnet for subnet in subnets if subnet["ip_version"] == version and not is_automatic(subnet)]
        if pooled:
            given.append(await _from_first(tx, port, pooled, position + len(given)))
    for subnet in subnets:
        if is_automatic(subnet):
            given.append(await _from_mac(tx, port, subnet, position + len(given)))
    return given


async def _from_first(tx: Transaction, port: Row, subnets: list[Row], position: int) -> FixedIp:
    """An address of the first subnet that has one left."""
    for subnet in subnets:
        try:
            ip = await addresses.take_any(tx, subnet, port["id"], position)
        except addresses.Exhausted:
            continue
        return {"subnet_id": subnet["id"], "ip_address": ip}
    raise no_more_addresses(port["network_id"])


async def _from_mac(tx: Transaction, port: Row, subnet: Row, position: int) -> FixedIp:
    ip = addresses.from_mac(addresses.network_of(subnet), port["mac_address"])
    return await _this(tx, port, subnet, ip, position)


def _may_be_gateway(port: Row, subnet: Row) -> bool:
    """On a shared network everybody's packets would go to whoever else took the address."""
    return bool(port["project_id"] == subnet["project_id"] or port["device_owner"].startswith("network:"))


async def _grant(tx: Transaction, port: Row, subnets: list[Row], wish: dict[str, Any], position: int) -> FixedIp:
    if "ip_address" not in wish:
        subnet = _subnet(port, subnets, wish["subnet_id"])
        if is_automatic(subnet):
            return await _from_mac(tx, port, subnet, position)
        return await _from_first(tx, port, [subnet], position)
    ip = ipaddress.ip_address(wish["ip_address"])
    if "subnet_id" in wish:
        subnet = _subnet(port, subnets, wish["subnet_id"])
        if not _fits_in(addresses.network_of(subnet), ip):
            raise invalid(f"IP address {ip} is not a valid IP for the specified subnet.", "InvalidIpForSubnet")
    else:
        subnet = _subnet_with(subnets, ip)
    if str(ip) == subnet["gateway_ip"] and not _may_be_gateway(port, subnet):
        raise invalid(f"IP address {ip} is that of the subnet's gateway.", "InvalidIpForSubnet")
    return await _this(tx, port, subnet, ip, position)


async def _this(tx: Transaction, port: Row, subnet: Row, ip: IpAddress, position: int) -> FixedIp:
    if not await addresses.take(tx, subnet, ip, port["id"], position):
        raise address_taken(str(ip), subnet["id"])
    return {"subnet_id": subnet["id"], "ip_address": str(ip)}


def _subnet(port: Row, subnets: list[Row], subnet_id: str) -> Row:
    for subnet in subnets:
        if subnet["id"] == subnet_id:
            return subnet
    raise invalid(
        f"Failed to create port on network {port['network_id']}, because fixed_ips included invalid subnet {subnet_id}"
    )


def _subnet_with(subnets: list[Row], ip: IpAddress) -> Row:
    for subnet in subnets:
        if _fits_in(addresses.network_of(subnet), ip):
            return subnet
    raise invalid(
        f"IP address {ip} is not a valid IP for any of the subnets on the specified network.", "InvalidIpForNetwork"
    )


def _fits_in(network: IpNetwork, ip: IpAddress) -> bool:
    return getattr(ip, "scope_id", None) is None and addresses.is_usable(network, ip)
