"""Update of a port: columns, security groups and fixed IPs."""

from __future__ import annotations

from typing import Any

from kilonova.network import resources
from kilonova.network.errors import conflict, invalid
from kilonova.network.ports import model
from kilonova.network.ports.fixed_ips import FixedIp, replace_fixed_ips
from kilonova.network.ports.model import Port
from kilonova.network.schemas import to_bool
from kilonova.network.security_groups import model as security_groups
from kilonova.network.subnets.model import subnets_of_network
from kilonova.store import Row, Transaction

_COLUMNS = {
    "name": "name",
    "description": "description",
    "device_id": "device_id",
    "device_owner": "device_owner",
    "binding:host_id": "host_id",
    "binding:vnic_type": "vnic_type",
}
_JSON_COLUMNS = {
    "binding:profile": "profile",
    "allowed_address_pairs": "allowed_address_pairs",
    "extra_dhcp_opts": "extra_dhcp_opts",
}
_BOOLEANS = ("admin_state_up", "port_security_enabled")


async def groups_for_new_port(tx: Transaction, row: Row, body: dict[str, Any], now: float) -> list[str]:
    """The requested security groups, or by default the project's default group."""
    requested = body.get("security_groups")
    if requested is not None:
        groups = list(dict.fromkeys(requested))
        if groups:
            _check_secured(row)
            await security_groups.check_usable(tx, row["project_id"], groups)
        return groups
    if not row["port_security_enabled"] or row["device_owner"].startswith("network:"):
        return []
    return [await security_groups.ensure_default(tx, row["project_id"], now)]


async def apply_update(tx: Transaction, port: Port, body: dict[str, Any], now: float) -> Port:
    changes = _changed_columns(body)
    after = {**port.row, **changes}
    if "mac_address" in changes and changes["mac_address"] != port.row["mac_address"]:
        await _check_mac(tx, port.row, changes["mac_address"])
    groups = await _changed_groups(tx, port, after, body)
    if body.get("fixed_ips") is not None:
        subnets = await subnets_of_network(tx, port.row["network_id"])
        fixed_ips = await replace_fixed_ips(tx, after, subnets, port.fixed_ips, body["fixed_ips"])
        await _disassociate_floating_ips(tx, port, fixed_ips)
        port = port._replace(fixed_ips=fixed_ips)
    return await model.change(tx, port, changes, groups, now)


def _changed_columns(body: dict[str, Any]) -> Row:
    changes: Row = {}
    for name, value in body.items():
        if name in _COLUMNS:
            changes[_COLUMNS[name]] = value or ""
        elif name in _JSON_COLUMNS:
            changes[_JSON_COLUMNS[name]] = resources.to_json(value or ({} if name == "binding:profile" else []))
        elif name in _BOOLEANS:
            changes[name] = to_bool(value)
        elif name == "mac_address":
            changes[name] = model.normalize_mac(value)
    return changes


async def _check_mac(tx: Transaction, row: Row, mac: str) -> None:
    if row["host_id"]:
        raise conflict(
            "PortBound",
            f"Unable to complete operation on port {row['id']}, port is already bound, port type: "
            f"{model.vif_type(row)}, old_mac {row['mac_address']}, new_mac {mac}.",
        )
    if await model.mac_in_use(tx, row, mac):
        raise conflict(
            "MacAddressInUse",
            f"Unable to complete operation for network {row['network_id']}. The mac address {mac} is in use.",
        )


async def _changed_groups(tx: Transaction, port: Port, after: Row, body: dict[str, Any]) -> list[str] | None:
    requested = body.get("security_groups")
    groups = port.groups if requested is None else list(dict.fromkeys(requested))
    if groups and not after["port_security_enabled"]:
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
        await security_groups.check_usable(tx, after["project_id"], groups)
    return groups


def _check_secured(row: Row) -> None:
    if not row["port_security_enabled"]:
        raise invalid(
            "Port security must be enabled and port must have an IP address in order to use security groups.",
            "PortSecurityAndIPRequiredForSecurityGroups",
        )


async def _disassociate_floating_ips(tx: Transaction, port: Port, fixed_ips: list[FixedIp]) -> None:
    """Disassociate the floating IPs of addresses that the port no longer has."""
    lost = {fixed["ip_address"] for fixed in port.fixed_ips} - {fixed["ip_address"] for fixed in fixed_ips}
    if lost:
        await tx.execute(
            "UPDATE floating_ips SET port_id = NULL, fixed_ip_address = NULL, router_id = NULL, status = 'DOWN' "
            "WHERE port_id = $1 AND fixed_ip_address = ANY($2)",
            port.row["id"],
            sorted(lost),
        )
