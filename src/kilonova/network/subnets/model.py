"""Records and rules of subnets."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Any, ClassVar

from msgspec import Struct, convert, structs

from kilonova.http.errors import Conflict
from kilonova.network import addresses, resources
from kilonova.network.addresses import Cursors, IpAddress, IpNetwork, Pool, ip_network
from kilonova.network.errors import conflict, invalid
from kilonova.network.resources import Resource
from kilonova.network.schemas import to_bool
from kilonova.network.subnets.pools import check_gateway, check_pools
from kilonova.store import Reader, Transaction

AUTOCONFIGURED_MODES = ("slaac", "dhcpv6-stateless")


class Route(Struct, frozen=True):
    """A host route of a subnet, or an extra route of a router."""

    destination: str
    nexthop: str


class Subnet(Resource, frozen=True):
    table: ClassVar[str] = "subnets"

    name: str
    network_id: str
    ip_version: int
    cidr: str
    gateway_ip: str | None
    enable_dhcp: bool
    ipv6_ra_mode: str | None
    ipv6_address_mode: str | None
    allocation_pools: tuple[Pool, ...]
    dns_nameservers: list[str]
    host_routes: list[Route]

    @property
    def is_autoconfigured(self) -> bool:
        """Whether guests derive their addresses from their MAC addresses (SLAAC)."""
        return self.ipv6_address_mode in AUTOCONFIGURED_MODES


def new_subnet(project_id: str, body: Mapping[str, Any], now: float) -> Subnet:
    network = _cidr(body)
    gateway = _gateway(network, body)
    if body.get("allocation_pools") is None:
        pools = addresses.default_pools(network, gateway)
    else:
        pools = check_pools(network, convert(body["allocation_pools"], list[Pool]))
    check_gateway(network, gateway, pools)
    _check_modes(network, body)
    return Subnet(
        **resources.standard_columns(project_id, body, now),
        name=body.get("name", ""),
        network_id=body["network_id"],
        ip_version=network.version,
        cidr=str(network),
        gateway_ip=str(gateway) if gateway else None,
        enable_dhcp=to_bool(body.get("enable_dhcp", True)),
        ipv6_ra_mode=body.get("ipv6_ra_mode"),
        ipv6_address_mode=body.get("ipv6_address_mode"),
        allocation_pools=pools,
        dns_nameservers=body.get("dns_nameservers", []),
        host_routes=convert(body.get("host_routes", []), list[Route]),
    )


def _cidr(body: Mapping[str, Any]) -> IpNetwork:
    text = body["cidr"]
    if "/" not in text:
        raise invalid(f"'{text}' isn't a recognized IP subnet cidr, '{text}/32' is recommended")
    # Host bits are dropped: 10.1.2.3/16 is 10.1.0.0/16.
    network = ipaddress.ip_network(text, strict=False)
    version = int(body["ip_version"])
    if network.version != version:
        raise invalid(f"cidr '{network}' does not match the ip_version '{version}'")
    if network.prefixlen == 0:
        raise invalid(f"cidr '{network}' is too wide: the prefix must have at least 1 bit")
    if network.is_multicast or network.is_loopback:
        raise invalid(f"cidr '{network}' is a multicast or loopback range")
    return network


def _gateway(network: IpNetwork, body: Mapping[str, Any]) -> IpAddress | None:
    if "gateway_ip" in body:
        return ipaddress.ip_address(body["gateway_ip"]) if body["gateway_ip"] else None
    if network.prefixlen == network.max_prefixlen:
        return None
    return network[1]


def _check_modes(network: IpNetwork, body: Mapping[str, Any]) -> None:
    ra, address = body.get("ipv6_ra_mode"), body.get("ipv6_address_mode")
    if not ra and not address:
        return
    if network.version == 4:
        raise invalid("ipv6_ra_mode and ipv6_address_mode are only valid for an IPv6 subnet")
    if not to_bool(body.get("enable_dhcp", True)):
        raise invalid("ipv6_ra_mode or ipv6_address_mode cannot be set when enable_dhcp is set to False")
    if ra and address and ra != address:
        raise invalid(
            f"ipv6_ra_mode set to '{ra}' with ipv6_address_mode set to '{address}' is not valid. "
            "If both attributes are set, they must be the same value"
        )
    if address in AUTOCONFIGURED_MODES and network.prefixlen != 64:
        raise invalid(f"a subnet of mode {address} must have a prefix of 64 bits")


async def create(tx: Transaction, subnet: Subnet) -> Subnet:
    await tx.lock(f"subnets of {subnet.network_id}")
    mine = ip_network(subnet.cidr)
    for other in await subnets_of_network(tx, subnet.network_id):
        if other.ip_version == mine.version and ip_network(other.cidr).overlaps(mine):
            raise invalid(
                f"Requested subnet with cidr: {mine} for network: {subnet.network_id} overlaps with another subnet"
            )
    await resources.insert(tx, subnet)
    return subnet


async def subnets_of_network(reader: Reader, network_id: str) -> list[Subnet]:
    sql = "SELECT * FROM subnets WHERE network_id = $1 ORDER BY ip_version, created_at, id"
    return Subnet.decode_all(await reader.fetch(sql, network_id))


async def change(tx: Transaction, subnet: Subnet, body: Mapping[str, Any], now: float) -> Subnet:
    changes: dict[str, object] = {}
    for name, value in body.items():
        if name == "enable_dhcp":
            changes[name] = to_bool(value)
        elif name == "gateway_ip":
            changes[name] = str(ipaddress.ip_address(value)) if value else None
        elif name == "allocation_pools":
            changes[name] = check_pools(ip_network(subnet.cidr), convert(value, list[Pool]))
        elif name == "host_routes":
            changes[name] = convert(value, list[Route])
        elif name == "dns_nameservers":
            changes[name] = value
        else:
            changes[name] = value or ""
    if "gateway_ip" in changes or "allocation_pools" in changes:
        await _check_layout(tx, subnet, structs.replace(subnet, **changes))
    return await resources.update(tx, subnet, changes, now)


async def _check_layout(tx: Transaction, subnet: Subnet, after: Subnet) -> None:
    gateway = ipaddress.ip_address(after.gateway_ip) if after.gateway_ip else None
    check_gateway(ip_network(subnet.cidr), gateway, after.allocation_pools)
    if after.gateway_ip == subnet.gateway_ip or subnet.gateway_ip is None:
        return
    held = await tx.fetch_one(
        "SELECT p.id, p.device_id FROM port_addresses a JOIN ports p ON p.id = a.port_id "
        "WHERE a.subnet_id = $1 AND a.ip_address = $2 AND p.device_owner = 'network:router_interface'",
        subnet.id,
        subnet.gateway_ip,
    )
    if held:
        raise conflict(
            "GatewayIpInUse",
            f"Current gateway ip {subnet.gateway_ip} already in use by port {held['id']}. Unable to update.",
        )


async def remove(tx: Transaction, cursors: Cursors, subnet_id: str) -> None:
    await resources.lock_for_delete(tx, Subnet, subnet_id)
    held = await tx.fetch_value("SELECT port_id FROM port_addresses WHERE subnet_id = $1 LIMIT 1", subnet_id)
    if held:
        raise subnet_in_use(subnet_id)
    await resources.delete(tx, Subnet, subnet_id)
    cursors.pop(subnet_id, None)


def subnet_in_use(subnet_id: str) -> Conflict:
    return conflict(
        "SubnetInUse",
        f"Unable to complete operation on subnet {subnet_id}: One or more ports have an IP allocation from this "
        "subnet.",
    )
