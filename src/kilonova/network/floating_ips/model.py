"""Records and rules of floating IPs. A port on the external network holds the address of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from kilonova.http.errors import NotFound
from kilonova.network import resources
from kilonova.network.addresses import Cursors
from kilonova.network.errors import conflict, invalid
from kilonova.network.networks.model import Network
from kilonova.network.ports import model as ports
from kilonova.network.ports.fixed_ips import FixedIpRequest
from kilonova.network.ports.model import PortDetails
from kilonova.network.resources import Resource
from kilonova.network.subnets.model import Subnet, subnets_of_network
from kilonova.store import Transaction

DEVICE_OWNER = "network:floatingip"
UNASSOCIATED: dict[str, str | None] = {"port_id": None, "fixed_ip_address": None, "router_id": None, "status": "DOWN"}


class FloatingIp(Resource, frozen=True):
    """`floating_port_id` is the port with the address. The floating IP may be associated with the port `port_id`."""

    table: ClassVar[str] = "floating_ips"

    status: str
    floating_network_id: str
    floating_ip_address: str
    floating_port_id: str
    port_id: str | None = None
    fixed_ip_address: str | None = None
    router_id: str | None = None


async def create(
    tx: Transaction, cursors: Cursors, project_id: str, network: Network, body: Mapping[str, Any], now: float
) -> FloatingIp:
    if not network.external:
        raise invalid(f"Network {network.id} is not a valid external network", "BadRequest")
    columns = resources.standard_columns(project_id, body, now)
    device = {"device_id": columns["id"], "device_owner": DEVICE_OWNER, "port_security_enabled": False}
    port = ports.new_port("", network, device, now)
    held = await ports.create(tx, cursors, port, await _subnets(tx, network, body), _requested_address(body), [])
    if not held.fixed_ips:
        raise conflict("ExternalIpAddressExhausted", f"Unable to find any IP address on external network {network.id}.")
    floating = FloatingIp(
        **columns,
        status="DOWN",
        floating_network_id=network.id,
        floating_ip_address=held.fixed_ips[0].ip_address,
        floating_port_id=port.id,
    )
    await resources.insert(tx, floating)
    return floating


async def _subnets(tx: Transaction, network: Network, body: Mapping[str, Any]) -> list[Subnet]:
    """The IPv4 subnets: floating IPs are IPv4 only."""
    found = [subnet for subnet in await subnets_of_network(tx, network.id) if subnet.ip_version == 4]
    if body.get("subnet_id") and body["subnet_id"] not in [subnet.id for subnet in found]:
        raise invalid(f"Failed to create floating IP: subnet {body['subnet_id']} is not on the external network")
    return found


def _requested_address(body: Mapping[str, Any]) -> list[FixedIpRequest] | None:
    request = FixedIpRequest(body.get("subnet_id") or None, body.get("floating_ip_address") or None)
    return None if request == FixedIpRequest() else [request]


async def associate(
    tx: Transaction, floating: FloatingIp, details: PortDetails, fixed_ip: str | None
) -> dict[str, str | None]:
    """The columns that associate the floating IP with the port."""
    port_id = details.port.id
    subnet_id, fixed_ip = _fixed_ip(details, fixed_ip)
    router_id = await tx.fetch_value(
        "SELECT r.id FROM port_addresses a "
        "JOIN ports i ON i.id = a.port_id AND i.device_owner = 'network:router_interface' "
        "JOIN routers r ON r.id = i.device_id JOIN ports g ON g.id = r.gateway_port_id "
        "WHERE a.subnet_id = $1 AND g.network_id = $2 ORDER BY r.created_at, r.id LIMIT 1",
        subnet_id,
        floating.floating_network_id,
    )
    if router_id is None:
        raise NotFound(
            f"External network {floating.floating_network_id} is not reachable from subnet {subnet_id}. "
            f"Therefore, cannot associate Port {port_id} with a Floating IP.",
            code="ExternalGatewayForFloatingIPNotFound",
        )
    other = await tx.fetch_one(
        "SELECT id, floating_ip_address FROM floating_ips WHERE port_id = $1 AND fixed_ip_address = $2 AND id <> $3",
        port_id,
        fixed_ip,
        floating.id,
    )
    if other:
        raise conflict(
            "FloatingIPPortAlreadyAssociated",
            f"Cannot associate floating IP {floating.floating_ip_address} ({floating.id}) with port {port_id} using "
            f"fixed IP {fixed_ip}, as that fixed IP already has a floating IP on external network "
            f"{floating.floating_network_id}.",
        )
    return {"port_id": port_id, "fixed_ip_address": fixed_ip, "router_id": router_id, "status": "ACTIVE"}


def _fixed_ip(details: PortDetails, requested: str | None) -> tuple[str, str]:
    """The subnet and address of the fixed IP to associate."""
    port_id = details.port.id
    usable = [fixed for fixed in details.fixed_ips if ":" not in fixed.ip_address]
    if requested:
        usable = [fixed for fixed in usable if fixed.ip_address == requested]
        if not usable:
            raise invalid(f"Port {port_id} does not have fixed ip {requested}", "BadRequest")
    if not usable:
        raise invalid(f"Cannot add floating IP to port {port_id} that has no fixed IPv4 addresses", "BadRequest")
    if len(usable) > 1:
        raise invalid(
            f"Port {port_id} has multiple fixed IPv4 addresses. Must provide a specific IPv4 address when "
            "assigning a floating IP",
            "BadRequest",
        )
    return usable[0].subnet_id, usable[0].ip_address


async def remove(tx: Transaction, floating: FloatingIp) -> None:
    await resources.delete(tx, FloatingIp, floating.id)
    await ports.remove(tx, floating.floating_port_id)
