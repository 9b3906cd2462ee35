"""Rows and rules of floating IPs. A port on the external network holds the address of each."""

from __future__ import annotations

from typing import Any

from kilonova.http.errors import NotFound
from kilonova.network import resources
from kilonova.network.errors import conflict, invalid
from kilonova.network.ports import model as ports
from kilonova.network.ports.model import Port
from kilonova.network.subnets.model import subnets_of_network
from kilonova.store import Row, Transaction

DEVICE_OWNER = "network:floatingip"
UNASSOCIATED: Row = {"port_id": None, "fixed_ip_address": None, "router_id": None, "status": "DOWN"}


async def create(tx: Transaction, project_id: str, network: Row, body: dict[str, Any], now: float) -> Row:
    if not network["external"]:
        raise invalid(f"Network {network['id']} is not a valid external network", "BadRequest")
    row = {**resources.standard_columns(project_id, body, now), **UNASSOCIATED, "floating_network_id": network["id"]}
    port = ports.new_row(
        "", network, {"device_id": row["id"], "device_owner": DEVICE_OWNER, "port_security_enabled": False}, now
    )
    held = await ports.create(tx, port, await _subnets(tx, network, body), _requested_address(body), [])
    if not held.fixed_ips:
        raise conflict(
            "ExternalIpAddressExhausted", f"Unable to find any IP address on external network {network['id']}."
        )
    row["floating_port_id"] = port["id"]
    row["floating_ip_address"] = held.fixed_ips[0]["ip_address"]
    await resources.insert(tx, "floating_ips", row)
    return row


async def _subnets(tx: Transaction, network: Row, body: dict[str, Any]) -> list[Row]:
    """The IPv4 subnets: floating IPs are IPv4 only."""
    found = [subnet for subnet in await subnets_of_network(tx, network["id"]) if subnet["ip_version"] == 4]
    if body.get("subnet_id") and body["subnet_id"] not in [subnet["id"] for subnet in found]:
        raise invalid(f"Failed to create floating IP: subnet {body['subnet_id']} is not on the external network")
    return found


def _requested_address(body: dict[str, Any]) -> list[dict[str, str]] | None:
    names = (("floating_ip_address", "ip_address"), ("subnet_id", "subnet_id"))
    request = {key: body[name] for name, key in names if body.get(name)}
    return [request] if request else None


async def associate(tx: Transaction, row: Row, port: Port, fixed_ip: str | None) -> Row:
    """The columns that associate the floating IP with the port."""
    subnet_id, fixed_ip = _fixed_ip(port, fixed_ip)
    router_id = await tx.fetch_value(
        "SELECT r.id FROM port_addresses a "
        "JOIN ports i ON i.id = a.port_id AND i.device_owner = 'network:router_interface' "
        "JOIN routers r ON r.id = i.device_id JOIN ports g ON g.id = r.gateway_port_id "
        "WHERE a.subnet_id = $1 AND g.network_id = $2 ORDER BY r.created_at, r.id LIMIT 1",
        subnet_id,
        row["floating_network_id"],
    )
    if router_id is None:
        raise NotFound(
            f"External network {row['floating_network_id']} is not reachable from subnet {subnet_id}. "
            f"Therefore, cannot associate Port {port.row['id']} with a Floating IP.",
            code="ExternalGatewayForFloatingIPNotFound",
        )
    other = await tx.fetch_one(
        "SELECT id, floating_ip_address FROM floating_ips WHERE port_id = $1 AND fixed_ip_address = $2 AND id <> $3",
        port.row["id"],
        fixed_ip,
        row["id"],
    )
    if other:
        raise already_associated(row, port.row["id"], fixed_ip)
    return {
        "port_id": port.row["id"],
        "fixed_ip_address": fixed_ip,
        "router_id": router_id,
        "status": "ACTIVE",
    }


def already_associated(row: Row, port_id: str, fixed_ip: str | None) -> Exception:
    return conflict(
        "FloatingIPPortAlreadyAssociated",
        f"Cannot associate floating IP {row['floating_ip_address']} ({row['id']}) with port {port_id} using fixed IP "
        f"{fixed_ip}, as that fixed IP already has a floating IP on external network {row['floating_network_id']}.",
    )


def _fixed_ip(port: Port, requested: str | None) -> tuple[str, str]:
    usable = [fixed for fixed in port.fixed_ips if ":" not in fixed["ip_address"]]
    if requested:
        usable = [fixed for fixed in usable if fixed["ip_address"] == requested]
        if not usable:
            raise invalid(f"Port {port.row['id']} does not have fixed ip {requested}", "BadRequest")
    if not usable:
        raise invalid(f"Cannot add floating IP to port {port.row['id']} that has no fixed IPv4 addresses", "BadRequest")
    if len(usable) > 1:
        raise invalid(
            f"Port {port.row['id']} has multiple fixed IPv4 addresses. Must provide a specific IPv4 address when "
            "assigning a floating IP",
            "BadRequest",
        )
    return usable[0]["subnet_id"], usable[0]["ip_address"]


async def remove(tx: Transaction, row: Row) -> None:
    await resources.delete(tx, "floating_ips", row["id"])
    await ports.remove(tx, row["floating_port_id"])
