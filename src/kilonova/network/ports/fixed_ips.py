"""Allocation and release of the fixed IPs of a port."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from msgspec import Struct

from kilonova.http.errors import Unavailable
from kilonova.network import addresses
from kilonova.network.addresses import Cursors, IpAddress, IpNetwork, ip_network
from kilonova.network.errors import address_in_use, invalid, no_more_addresses
from kilonova.network.subnets.model import Subnet
from kilonova.store import Transaction
from kilonova.store.records import Record

if TYPE_CHECKING:
    from kilonova.network.ports.model import Port

_RELEASE = "DELETE FROM port_addresses WHERE subnet_id = $1 AND ip_address = $2 AND port_id = $3"


class FixedIp(Record, frozen=True):
    table: ClassVar[str] = "port_addresses"

    subnet_id: str
    ip_address: str

    def view(self) -> dict[str, str]:
        return {"subnet_id": self.subnet_id, "ip_address": self.ip_address}


class FixedIpRequest(Struct, frozen=True):
    """A request for an address: this one, any of this subnet, or this one of this subnet."""

    subnet_id: str | None = None
    ip_address: str | None = None

    def matches(self, fixed: FixedIp) -> bool:
        if self.subnet_id is not None and self.subnet_id != fixed.subnet_id:
            return False
        if self.ip_address is not None:
            return ipaddress.ip_address(self.ip_address) == ipaddress.ip_address(fixed.ip_address)
        return True


class Allocation:
    """Allocates addresses of the subnets of its network to a port."""

    def __init__(self, tx: Transaction, cursors: Cursors, port: Port, subnets: Sequence[Subnet]) -> None:
        self._tx = tx
        self._cursors = cursors
        self._port = port
        self._subnets = subnets

    async def assign(self, requests: Sequence[FixedIpRequest] | None, position: int = 0) -> list[FixedIp]:
        """Allocate the requested addresses, or by default one of each IP version that the network has."""
        try:
            if requests is None:
                return await self._one_per_version()
            return [await self._allocate(request, place) for place, request in enumerate(requests, start=position)]
        except addresses.AllocationContended:
            raise Unavailable("Too many ports are being created in this subnet at once; try again.") from None

    async def replace(self, held: Sequence[FixedIp], requests: Sequence[FixedIpRequest]) -> list[FixedIp]:
        """Change the port's addresses. Addresses that match a request stay: a repeated update changes nothing."""
        kept, missing = _match_requests(held, requests)
        for fixed in held:
            if fixed not in kept:
                await self._tx.execute(_RELEASE, fixed.subnet_id, fixed.ip_address, self._port.id)
        # Positions only order the list; gaps do not matter.
        return kept + await self.assign(missing, position=len(held))

    async def _one_per_version(self) -> list[FixedIp]:
        assigned: list[FixedIp] = []
        for version in (4, 6):
            pooled = [each for each in self._subnets if each.ip_version == version and not each.is_autoconfigured]
            if pooled:
                assigned.append(await self._allocate_from_first(pooled, len(assigned)))
        for subnet in self._subnets:
            if subnet.is_autoconfigured:
                assigned.append(await self._autoconfigure(subnet, len(assigned)))
        return assigned

    async def _allocate_from_first(self, subnets: Sequence[Subnet], position: int) -> FixedIp:
        """Allocate an address of the first subnet that has a free one."""
        for subnet in subnets:
            try:
                ip = await addresses.allocate_any(self._tx, self._cursors, subnet, self._port.id, position)
            except addresses.PoolsExhausted:
                continue
            return FixedIp(subnet.id, ip)
        raise no_more_addresses(self._port.network_id)

    async def _autoconfigure(self, subnet: Subnet, position: int) -> FixedIp:
        ip = addresses.eui64_address(ip_network(subnet.cidr), self._port.mac_address)
        return await self._allocate_exactly(subnet, ip, position)

    async def _allocate(self, request: FixedIpRequest, position: int) -> FixedIp:
        subnet = self._subnet(request.subnet_id) if request.subnet_id is not None else None
        if request.ip_address is not None:
            ip = ipaddress.ip_address(request.ip_address)
            if subnet is None:
                subnet = self._subnet_containing(ip)
            elif not _is_usable(ip_network(subnet.cidr), ip):
                raise invalid(f"IP address {ip} is not a valid IP for the specified subnet.", "InvalidIpForSubnet")
            for other in self._subnets:
                if str(ip) == other.gateway_ip and not self._may_use_gateway_ip(other):
                    raise invalid(f"IP address {ip} is the gateway of subnet {other.id}.", "InvalidIpForSubnet")
            return await self._allocate_exactly(subnet, ip, position)
        if subnet is not None and subnet.is_autoconfigured:
            return await self._autoconfigure(subnet, position)
        return await self._allocate_from_first([subnet] if subnet else self._subnets, position)

    async def _allocate_exactly(self, subnet: Subnet, ip: IpAddress, position: int) -> FixedIp:
        if not await addresses.allocate(self._tx, subnet, ip, self._port.id, position):
            raise address_in_use(str(ip), subnet.id)
        return FixedIp(subnet.id, str(ip))

    def _may_use_gateway_ip(self, subnet: Subnet) -> bool:
        """A port of another project with the gateway's address would receive all traffic of a shared network."""
        return self._port.project_id == subnet.project_id or self._port.device_owner.startswith("network:")

    def _subnet(self, subnet_id: str) -> Subnet:
        for subnet in self._subnets:
            if subnet.id == subnet_id:
                return subnet
        raise invalid(
            f"Failed to create port on network {self._port.network_id}, because fixed_ips included invalid subnet "
            f"{subnet_id}"
        )

    def _subnet_containing(self, ip: IpAddress) -> Subnet:
        for subnet in self._subnets:
            if _is_usable(ip_network(subnet.cidr), ip):
                return subnet
        raise invalid(
            f"IP address {ip} is not a valid IP for any of the subnets on the specified network.", "InvalidIpForNetwork"
        )


def _match_requests(
    held: Sequence[FixedIp], requests: Sequence[FixedIpRequest]
) -> tuple[list[FixedIp], list[FixedIpRequest]]:
    free = list(held)
    kept: list[FixedIp] = []
    missing: list[FixedIpRequest] = []
    for request in sorted(requests, key=lambda request: request.ip_address is None):
        matching = next((fixed for fixed in free if request.matches(fixed)), None)
        if matching is None:
            missing.append(request)
        else:
            free.remove(matching)
            kept.append(matching)
    return kept, missing


def _is_usable(network: IpNetwork, ip: IpAddress) -> bool:
    return getattr(ip, "scope_id", None) is None and addresses.is_usable(network, ip)
