"""Records and rules of routers. A gateway or an interface is a port whose device is the router."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from msgspec import convert, to_builtins

from kilonova.http.errors import HttpError, NotFound
from kilonova.network import resources
from kilonova.network.addresses import Cursors, IpNetwork, ip_network
from kilonova.network.errors import conflict, invalid
from kilonova.network.networks.model import Network
from kilonova.network.ports import model as ports
from kilonova.network.ports.fixed_ips import FixedIpRequest
from kilonova.network.ports.model import Port, PortDetails
from kilonova.network.resources import Resource
from kilonova.network.schemas import to_bool
from kilonova.network.subnets.model import Route, Subnet, subnets_of_network
from kilonova.store import Reader, Transaction

INTERFACE, GATEWAY = "network:router_interface", "network:router_gateway"
MAX_ROUTES = 30


class Router(Resource, frozen=True):
    table: ClassVar[str] = "routers"

    name: str
    status: str
    admin_state_up: bool
    gateway_port_id: str | None
    enable_snat: bool
    routes: list[Route]
    availability_zone_hints: list[str]


def new_router(project_id: str, body: Mapping[str, Any], now: float) -> Router:
    return Router(
        **resources.standard_columns(project_id, body, now),
        name=body.get("name", ""),
        status="ACTIVE",
        admin_state_up=to_bool(body.get("admin_state_up", True)),
        gateway_port_id=None,
        enable_snat=True,
        routes=[],
        availability_zone_hints=body.get("availability_zone_hints", []),
    )


async def interfaces(reader: Reader, router_id: str) -> list[PortDetails]:
    found = await reader.fetch(
        "SELECT * FROM ports WHERE device_id = $1 AND device_owner = $2 ORDER BY created_at, id", router_id, INTERFACE
    )
    return await ports.load_details(reader, Port.decode_all(found))


async def set_gateway(
    tx: Transaction, cursors: Cursors, router: Router, network: Network, info: Mapping[str, Any], now: float
) -> Router:
    """Set the external gateway. The same network again keeps the gateway's address."""
    if not network.external:
        raise invalid(f"Network {network.id} is not an external network", "BadRequest")
    snat = to_bool(info.get("enable_snat", True))
    held = await resources.find(tx, Port, router.gateway_port_id) if router.gateway_port_id else None
    wanted = convert(info.get("external_fixed_ips") or [], list[FixedIpRequest])
    if held and held.network_id == network.id and not wanted:
        return await resources.update(tx, router, {"enable_snat": snat}, now)
    if held:
        router = await clear_gateway(tx, router, network.id, now)
    device = {"device_id": router.id, "device_owner": GATEWAY, "port_security_enabled": False}
    # Gateway ports belong to no project, so that projects do not see them.
    port = ports.new_port("", network, device, now)
    await ports.create(tx, cursors, port, await subnets_of_network(tx, network.id), wanted or None, [])
    return await resources.update(tx, router, {"gateway_port_id": port.id, "enable_snat": snat}, now)


async def clear_gateway(tx: Transaction, router: Router, new_network_id: str | None, now: float) -> Router:
    if router.gateway_port_id is None:
        return router
    if await tx.fetch_value("SELECT 1 FROM floating_ips WHERE router_id = $1 LIMIT 1", router.id):
        raise conflict(
            "RouterExternalGatewayInUseByFloatingIp",
            f"Gateway cannot be updated for router {router.id}, since a gateway to external network "
            f"{new_network_id or 'none'} is required by one or more floating IPs.",
        )
    after = await resources.update(tx, router, {"gateway_port_id": None, "enable_snat": True}, now)
    await ports.remove(tx, router.gateway_port_id)
    return after


async def add_subnet(
    tx: Transaction, cursors: Cursors, router: Router, subnet: Subnet, network: Network, now: float
) -> PortDetails:
    """Add an interface with the subnet's gateway address."""
    if not subnet.gateway_ip:
        raise invalid("Subnet for router interface must have a gateway IP", "BadRequest")
    await _check_no_overlap(tx, router, [subnet])
    device = {"device_id": router.id, "device_owner": INTERFACE, "port_security_enabled": False}
    port = ports.new_port(router.project_id, network, device, now)
    wanted = [FixedIpRequest(subnet.id, subnet.gateway_ip)]
    return await ports.create(tx, cursors, port, await subnets_of_network(tx, network.id), wanted, [])


async def add_port(tx: Transaction, router: Router, details: PortDetails, now: float) -> PortDetails:
    """Make an existing port an interface of the router."""
    port = details.port
    if port.device_id:
        raise conflict(
            "PortInUse",
            f"Unable to complete operation on port {port.id} for network {port.network_id}. Port already has an "
            f"attached device {port.device_id}.",
        )
    if not details.fixed_ips:
        raise invalid("Router port must have at least one fixed IP", "BadRequest")
    subnets = await tx.fetch("SELECT * FROM subnets WHERE id = ANY($1)", _subnet_ids(details))
    await _check_no_overlap(tx, router, Subnet.decode_all(subnets))
    return await ports.change(tx, details, {"device_id": router.id, "device_owner": INTERFACE}, None, now)


def _subnet_ids(details: PortDetails) -> list[str]:
    return [fixed.subnet_id for fixed in details.fixed_ips]


async def _check_no_overlap(tx: Transaction, router: Router, subnets: Sequence[Subnet]) -> None:
    """The subnets of a router's interfaces must not overlap."""
    await tx.lock(f"router {router.id}")
    connected = await tx.fetch(
        "SELECT s.id, s.cidr FROM ports p JOIN port_addresses a ON a.port_id = p.id "
        "JOIN subnets s ON s.id = a.subnet_id WHERE p.device_id = $1 AND p.device_owner = $2",
        router.id,
        INTERFACE,
    )
    for subnet in subnets:
        mine = ip_network(subnet.cidr)
        for other in connected:
            if other["id"] == subnet.id:
                raise invalid(f"Router already has a port on subnet {subnet.id}", "BadRequest")
            theirs = ip_network(other["cidr"])
            if theirs.version == mine.version and theirs.overlaps(mine):
                raise invalid(
                    f"Cidr {mine} of subnet {subnet.id} overlaps with cidr {theirs} of subnet {other['id']}",
                    "BadRequest",
                )


async def set_routes(tx: Transaction, router: Router, requested: Sequence[Route], now: float) -> Router:
    """Set the extra routes. A next hop must be in a connected network, and not be the router itself."""
    cidrs, own = await _connections(tx, router.id)
    routes = list(dict.fromkeys(requested))
    for route in routes:
        hop = ipaddress.ip_address(route.nexthop)
        if not any(hop in cidr for cidr in cidrs):
            raise _invalid_routes(routes, "the nexthop is not connected with router")
        if str(hop) in own:
            raise _invalid_routes(routes, "the nexthop is used by router")
        if hop.version != ipaddress.ip_network(route.destination, strict=False).version:
            raise _invalid_routes(routes, "destination and nexthop are of different IP versions")
    if len(routes) > MAX_ROUTES:
        raise invalid(
            f"Unable to complete operation for {router.id}. The number of routes exceeds the maximum {MAX_ROUTES}.",
            "RoutesExhausted",
        )
    return await resources.update(tx, router, {"routes": routes}, now)


def _invalid_routes(routes: Sequence[Route], why: str) -> HttpError:
    return invalid(f"Invalid format for routes: {to_builtins(routes)}, {why}", "InvalidRoutes")


async def _connections(tx: Transaction, router_id: str) -> tuple[list[IpNetwork], set[str]]:
    """The CIDRs that the router is connected to, also by its gateway, and the router's addresses there."""
    found = await tx.fetch(
        "SELECT s.cidr, a.ip_address FROM ports p JOIN port_addresses a ON a.port_id = p.id "
        "JOIN subnets s ON s.network_id = p.network_id AND (s.id = a.subnet_id OR p.device_owner = $2) "
        "WHERE p.device_id = $1 AND p.device_owner IN ($2, $3)",
        router_id,
        GATEWAY,
        INTERFACE,
    )
    return [ipaddress.ip_network(row["cidr"]) for row in found], {row["ip_address"] for row in found}


async def remove_interface(tx: Transaction, router: Router, details: PortDetails) -> None:
    for subnet_id in _subnet_ids(details):
        used = await tx.fetch_value(
            "SELECT 1 FROM floating_ips f JOIN port_addresses a ON a.port_id = f.port_id "
            "AND a.ip_address = f.fixed_ip_address WHERE f.router_id = $1 AND a.subnet_id = $2 LIMIT 1",
            router.id,
            subnet_id,
        )
        if used:
            raise conflict(
                "RouterInterfaceInUseByFloatingIP",
                f"Router interface for subnet {subnet_id} on router {router.id} cannot be deleted, as it is "
                "required by one or more floating IPs.",
            )
    await _check_not_used_by_routes(tx, router, details)
    await ports.remove(tx, details.port.id)


async def _check_not_used_by_routes(tx: Transaction, router: Router, details: PortDetails) -> None:
    hops = [ipaddress.ip_address(route.nexthop) for route in router.routes]
    for subnet in await tx.fetch("SELECT id, cidr FROM subnets WHERE id = ANY($1)", _subnet_ids(details)):
        if any(hop in ip_network(subnet["cidr"]) for hop in hops):
            raise conflict(
                "RouterInterfaceInUseByRoute",
                f"Router interface for subnet {subnet['id']} on router {router.id} cannot be deleted, as it is "
                "required by one or more routes.",
            )


async def remove(tx: Transaction, router: Router, now: float) -> None:
    if await interfaces(tx, router.id):
        raise conflict("RouterInUse", f"Router {router.id} still has ports")
    await clear_gateway(tx, router, None, now)
    await resources.delete(tx, Router, router.id)


def interface_not_found(router_id: str, subnet_id: str) -> NotFound:
    return NotFound(
        f"Router {router_id} has no interface on subnet {subnet_id}", code="RouterInterfaceNotFoundForSubnet"
    )


async def gateways(reader: Reader, routers: Sequence[Router]) -> dict[str | None, PortDetails]:
    """The gateway ports of these routers, by port id."""
    ids = [router.gateway_port_id for router in routers if router.gateway_port_id]
    if not ids:
        return {}
    found = Port.decode_all(await reader.fetch("SELECT * FROM ports WHERE id = ANY($1)", ids))
    return {details.port.id: details for details in await ports.load_details(reader, found)}
