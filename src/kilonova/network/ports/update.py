"""Update of a port: columns, security groups and fixed IPs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import convert, structs

from kilonova.network.addresses import Cursors
from kilonova.network.errors import conflict, invalid
from kilonova.network.ports import model
from kilonova.network.ports.fixed_ips import Allocation, FixedIp, FixedIpRequest
from kilonova.network.ports.model import Port, PortDetails
from kilonova.network.schemas import to_bool
from kilonova.network.security_groups import model as security_groups
from kilonova.network.subnets.model import subnets_of_network
from kilonova.store import Transaction

_COLUMNS = {
    "name": "name",
    "description": "description",
    "device_id": "device_id",
    "device_owner": "device_owner",
    "binding:host_id": "host_id",
    "binding:vnic_type": "vnic_type",
}
_DOCUMENTS = {
    "binding:profile": "profile",
    "allowed_address_pairs": "allowed_address_pairs",
    "extra_dhcp_opts": "extra_dhcp_opts",
}
_BOOLEANS = ("admin_state_up", "port_security_enabled")


async def groups_for_new_port(tx: Transaction, port: Port, body: Mapping[str, Any], now: float) -> list[str]:
    """The requested security groups, or by default the project's default group."""
    requested = body.get("security_groups")
    if requested is not None:
        groups = list(dict.fromkeys(requested))
        if groups:
            _check_secured(port)
            await security_groups.check_usable(tx, port.project_id, groups)
        return groups
    if not port.port_security_enabled or port.device_owner.startswith("network:"):
        return []
    return [await security_groups.ensure_default(tx, port.project_id, now)]


async def apply_update(
    tx: Transaction, cursors: Cursors, details: PortDetails, body: Mapping[str, Any], now: float
) -> PortDetails:
    changes = _changed_columns(body)
    after = structs.replace(details.port, **changes)
    if after.mac_address != details.port.mac_address:
        await _check_mac(tx, details.port, after.mac_address)
    groups = await _changed_groups(tx, details, after, body)
    if body.get("fixed_ips") is not None:
        requests = convert(body["fixed_ips"], list[FixedIpRequest])
        allocation = Allocation(tx, cursors, after, await subnets_of_network(tx, after.network_id))
        fixed_ips = await allocation.replace(details.fixed_ips, requests)
        await _disassociate_floating_ips(tx, details, fixed_ips)
        details = structs.replace(details, fixed_ips=fixed_ips)
    return await model.change(tx, details, changes, groups, now)


def _changed_columns(body: Mapping[str, Any]) -> dict[str, object]:
    changes: dict[str, object] = {}
    for name, value in body.items():
        if name in _COLUMNS:
            changes[_COLUMNS[name]] = value or ""
        elif name in _DOCUMENTS:
            changes[_DOCUMENTS[name]] = value or ({} if name == "binding:profile" else [])
        elif name in _BOOLEANS:
            changes[name] = to_bool(value)
        elif name == "mac_address":
            changes[name] = model.normalize_mac(value)
    return changes


async def _check_mac(tx: Transaction, port: Port, mac: str) -> None:
    if port.host_id:
        raise conflict(
            "PortBound",
            f"Unable to complete operation on port {port.id}, port is already bound, port type: "
            f"{model.vif_type(port.host_id, port.vnic_type)}, old_mac {port.mac_address}, new_mac {mac}.",
        )
    if await model.mac_in_use(tx, port, mac):
        raise conflict(
            "MacAddressInUse",
            f"Unable to complete operation for network {port.network_id}. The mac address {mac} is in use.",
        )


async def _changed_groups(
    tx: Transaction, details: PortDetails, after: Port, body: Mapping[str, Any]
) -> list[str] | None:
    requested = body.get("security_groups")
    groups = details.groups if requested is None else list(dict.fromkeys(requested))
    if groups and not after.port_security_enabled:
        if requested:
            _check_secured(after)
        raise conflict(
            "PortSecurityPortHasSecurityGroup",
            "Port has security group associated. Cannot disable port security or IP address until security group is "
            "removed.",
        )
    if requested is None:
        return None
    if groups:
        await security_groups.check_usable(tx, after.project_id, groups)
    return groups


def _check_secured(port: Port) -> None:
    if not port.port_security_enabled:
        raise invalid(
            "Port security must be enabled and port must have an IP address in order to use security groups.",
            "PortSecurityAndIPRequiredForSecurityGroups",
        )


async def _disassociate_floating_ips(tx: Transaction, before: PortDetails, fixed_ips: list[FixedIp]) -> None:
    """Disassociate the floating IPs of addresses that the port no longer has."""
    lost = {fixed.ip_address for fixed in before.fixed_ips} - {fixed.ip_address for fixed in fixed_ips}
    if lost:
        await tx.execute(
            "UPDATE floating_ips SET port_id = NULL, fixed_ip_address = NULL, router_id = NULL, status = 'DOWN' "
            "WHERE port_id = $1 AND fixed_ip_address = ANY($2)",
            before.port.id,
            sorted(lost),
        )
