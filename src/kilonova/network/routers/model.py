"""Rows and rules of routers. A gateway or an interface is a port whose device is the router."""

from __future__ import annotations

import ipaddress
from typing import Any

import orjson

from kilonova.http.errors import HttpError, NotFound
from kilonova.network import addresses, resources
from kilonova.network.addresses import IpNetwork
from kilonova.network.errors import conflict, invalid
from kilonova.network.ports import model as ports
from kilonova.network.ports.model import Port
from kilonova.network.schemas import to_bool
from kilonova.network.subnets.model import subnets_of_network
from kilonova.store import Reader, Row, Transaction

INTERFACE, GATEWAY = "network:router_interface", "network:router_gateway"
MAX_ROUTES = 30


def new_row(project_id: str, body: dict[str, Any], now: float) -> Row:
    return {
        **resources.standard_columns(project_id, body, now),
        "name": body.get("name", ""),
        "status": "ACTIVE",
        "admin_state_up": to_bool(body.get("admin_state_up", True)),
        "gateway_port_id": None,
        "enable_snat": True,
        "routes": "[]",
        "availability_zone_hints": resources.to_json(body.get("availability_zone_hints", [])),
    }


async def interfaces(reader: Reader, router_id: str) -> list[Port]:
    found = await reader.fetch(
        "SELECT * FROM ports WHERE device_id = $1 AND device_owner = $2 ORDER BY created_at, id", router_id, INTERFACE
    )
    return await ports.load_details(reader, found)


async def set_gateway(tx: Transaction, router: Row, network: Row, info: dict[str, Any], now: float) -> Row:
    """Set the external gateway. The same network again keeps the gateway's address."""
    if not network["external"]:
        raise invalid(f"Network {network['id']} is not an external network", "BadRequest")
    snat = to_bool(info.get("enable_snat", True))
    held = await resources.get(tx, "ports", router["gateway_port_id"]) if router["gateway_port_id"] else None
    fixed_ips = info.get("external_fixed_ips")
    if held and held["network_id"] == network["id"] and not fixed_ips:
        return await resources.update(tx, "routers", router, {"enable_snat": snat}, now)
    if held:
        router = await clear_gateway(tx, router, network["id"], now)
    body = {"device_id": router["id"], "device_owner": GATEWAY, "port_security_enabled": False}
    # Gateway ports belong to no project, so that projects do not see them.
    row = ports.new_row("", network, body, now)
    await ports.create(tx, row, await subnets_of_network(tx, network["id"]), fixed_ips or None, [])
    return await resources.update(tx, "routers", router, {"gateway_port_id": row["id"], "enable_snat": snat}, now)


async def clear_gateway(tx: Transaction, router: Row, new_network_id: str | None, now: float) -> Row:
    if router["gateway_port_id"] is None:
        return router
    if await tx.fetch_value("SELECT 1 FROM floating_ips WHERE router_id = $1 LIMIT 1", router["id"]):
        raise conflict(
            "RouterExternalGatewayInUseByFloatingIp",
            f"Gateway cannot be updated for router {router['id']}, since a gateway to external network "
            f"{new_network_id or 'none'} is required by one or more floating IPs.",
        )
    after = await resources.update(tx, "routers", router, {"gateway_port_id": None, "enable_snat": True}, now)
    await ports.remove(tx, router["gateway_port_id"])
    return after


async def add_subnet(tx: Transaction, router: Row, subnet: Row, network: Row, now: float) -> Port:
    """Add an interface with the subnet's gateway address."""
    if not subnet["gateway_ip"]:
        raise invalid("Subnet for router interface must have a gateway IP", "BadRequest")
    await _check_no_overlap(tx, router, [subnet])
    body = {"device_id": router["id"], "device_owner": INTERFACE, "port_security_enabled": False}
    row = ports.new_row(router["project_id"], network, body, now)
    wanted = [{"subnet_id": subnet["id"], "ip_address": subnet["gateway_ip"]}]
    return await ports.create(tx, row, await subnets_of_network(tx, network["id"]), wanted, [])


async def add_port(tx: Transaction, router: Row, port: Port, now: float) -> Port:
    """Make an existing port an interface of the router."""
    if port.row["device_id"]:
        raise conflict(
            "PortInUse",
            f"Unable to complete operation on port {port.row['id']} for network {port.row['network_id']}. Port already "
            f"has an attached device {port.row['device_id']}.",
        )
    if not port.fixed_ips:
        raise invalid("Router port must have at least one fixed IP", "BadRequest")
    subnets = await tx.fetch(
        "SELECT * FROM subnets WHERE id = ANY($1)", [fixed["subnet_id"] for fixed in port.fixed_ips]
    )
    await _check_no_overlap(tx, router, subnets)
    return await ports.change(tx, port, {"device_id": router["id"], "device_owner": INTERFACE}, None, now)


async def _check_no_overlap(tx: Transaction, router: Row, subnets: list[Row]) -> None:
    """The subnets of a router's interfaces must not overlap."""
    await tx.lock(f"router {router['id']}")
    connected = await tx.fetch(
        "SELECT s.id, s.cidr FROM ports p JOIN port_addresses a ON a.port_id = p.id "
        "JOIN subnets s ON s.id = a.subnet_id WHERE p.device_id = $1 AND p.device_owner = $2",
        router["id"],
        INTERFACE,
    )
    for subnet in subnets:
        mine = addresses.ip_network_of(subnet)
        for other in connected:
            if other["id"] == subnet["id"]:
                raise invalid(f"Router already has a port on subnet {subnet['id']}", "BadRequest")
            theirs = addresses.ip_network_of(other)
            if theirs.version == mine.version and theirs.overlaps(mine):
                raise invalid(
                    f"Cidr {mine} of subnet {subnet['id']} overlaps with cidr {theirs} of subnet {other['id']}",
                    "BadRequest",
                )


async def set_routes(tx: Transaction, router: Row, routes: list[dict[str, str]], now: float) -> Row:
    """Set the extra routes. A next hop must be in a connected network, and not be the router itself."""
    cidrs, own = await _connections(tx, router["id"])
    routes = _distinct(routes)
    for route in routes:
        hop = ipaddress.ip_address(route["nexthop"])
        if not any(hop in cidr for cidr in cidrs):
            raise _invalid_routes(routes, "the nexthop is not connected with router")
        if str(hop) in own:
            raise _invalid_routes(routes, "the nexthop is used by router")
        if hop.version != ipaddress.ip_network(route["destination"], strict=False).version:
            raise _invalid_routes(routes, "destination and nexthop are of different IP versions")
    if len(routes) > MAX_ROUTES:
        raise invalid(
            f"Unable to complete operation for {router['id']}. The number of routes exceeds the maximum {MAX_ROUTES}.",
            "RoutesExhausted",
        )
    return await resources.update(tx, "routers", router, {"routes": resources.to_json(routes)}, now)


def _distinct(routes: list[dict[str, str]]) -> list[dict[str, str]]:
    return list({(route["destination"], route["nexthop"]): route for route in routes}.values())


def _invalid_routes(routes: list[dict[str, str]], why: str) -> HttpError:
    return invalid(f"Invalid format for routes: {routes}, {why}", "InvalidRoutes")


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


async def remove_interface(tx: Transaction, router: Row, port: Port) -> None:
    for fixed in port.fixed_ips:
        used = await tx.fetch_value(
            "SELECT 1 FROM floating_ips f JOIN port_addresses a ON a.port_id = f.port_id "
            "AND a.ip_address = f.fixed_ip_address WHERE f.router_id = $1 AND a.subnet_id = $2 LIMIT 1",
            router["id"],
            fixed["subnet_id"],
        )
        if used:
            raise conflict(
                "RouterInterfaceInUseByFloatingIP",
                f"Router interface for subnet {fixed['subnet_id']} on router {router['id']} cannot be deleted, as it "
                "is required by one or more floating IPs.",
            )
    await _check_not_used_by_routes(tx, router, port)
    await ports.remove(tx, port.row["id"])


async def _check_not_used_by_routes(tx: Transaction, router: Row, port: Port) -> None:
    hops = [ipaddress.ip_address(route["nexthop"]) for route in orjson.loads(router["routes"])]
    for subnet in await tx.fetch(
        "SELECT id, cidr FROM subnets WHERE id = ANY($1)", [fixed["subnet_id"] for fixed in port.fixed_ips]
    ):
        if any(hop in addresses.ip_network_of(subnet) for hop in hops):
            raise conflict(
                "RouterInterfaceInUseByRoute",
                f"Router interface for subnet {subnet['id']} on router {router['id']} cannot be deleted, as it is "
                "required by one or more routes.",
            )


async def remove(tx: Transaction, router: Row, now: float) -> None:
    if await interfaces(tx, router["id"]):
        raise conflict("RouterInUse", f"Router {router['id']} still has ports")
    await clear_gateway(tx, router, None, now)
    await resources.delete(tx, "routers", router["id"])


def interface_not_found(router_id: str, subnet_id: str) -> NotFound:
    return NotFound(
        f"Router {router_id} has no interface on subnet {subnet_id}", code="RouterInterfaceNotFoundForSubnet"
    )


async def gateways(reader: Reader, found: list[Row]) -> dict[str, Port]:
    """The gateway ports of these routers, by port id."""
    ids = [row["gateway_port_id"] for row in found if row["gateway_port_id"]]
    if not ids:
        return {}
    held = await ports.load_details(reader, await reader.fetch("SELECT * FROM ports WHERE id = ANY($1)", ids))
    return {port.row["id"]: port for port in held}
