"""What may be asked of a port, and how a change is carried out."""

from __future__ import annotations

from typing import Any

from kilonova.http import Context
from kilonova.http.errors import Forbidden
from kilonova.network import rows
from kilonova.network.access import sees_all
from kilonova.network.errors import conflict, invalid
from kilonova.network.groups import model as groups_model
from kilonova.network.ports import addressing, model
from kilonova.network.ports.model import Port
from kilonova.network.schema import truth
from kilonova.network.subnets.model import of_network
from kilonova.store import Row, Transaction

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


def authorize_addresses(
    ctx: Context, rule: str, body: dict[str, Any], target: dict[str, Any], held: list[addressing.FixedIp] | None = None
) -> None:
    """To name addresses is more than to have some. Those that the port holds already are no choice any more."""
    wishes = [wish for wish in body.get("fixed_ips") or [] if not _holds(held or [], wish)]
    for key in sorted({key for wish in wishes for key in wish}):
        ctx.authorize(f"{rule}:fixed_ips:{key}", target)


def _holds(held: list[addressing.FixedIp], wish: dict[str, Any]) -> bool:
    return "ip_address" in wish and any(addressing.fits(fixed, wish) for fixed in held)


def authorize_device(ctx: Context, body: dict[str, Any], network: Row | None, row: Row | None = None) -> None:
    """Ports by which the network service itself works are told by their device: nobody may fake or divert one."""
    if sees_all(ctx, "update_port"):
        return
    owner = body.get("device_owner", "")
    is_owner = network is not None and network["project_id"] == ctx.token.project_id
    if owner in model.SERVICE_OWNERS or (owner.startswith("network:") and not is_owner):
        raise Forbidden(f"The device owner {owner} is for the network service to set.")
    if row is not None and row["device_owner"] in model.SERVICE_OWNERS and body.keys() & {"device_id", "device_owner"}:
        raise conflict(
            "ServicePortInUse",
            f"Port {row['id']} cannot be given to another device: has device owner {row['device_owner']}.",
        )


async def groups_for(tx: Transaction, row: Row, body: dict[str, Any], now: float) -> list[str]:
    """The security groups of a new port: those asked for, else the project's default one."""
    asked = body.get("security_groups")
    if asked is not None:
        groups = list(dict.fromkeys(asked))
        if groups:
            _check_secured(row)
            await groups_model.check_usable(tx, row["project_id"], groups)
        return groups
    if not row["port_security_enabled"] or row["device_owner"].startswith("network:"):
        return []
    return [await groups_model.ensure_default(tx, row["project_id"], now)]


async def change(tx: Transaction, port: Port, body: dict[str, Any], now: float) -> Port:
    changes = _columns(body)
    after = {**port.row, **changes}
    if "mac_address" in changes and changes["mac_address"] != port.row["mac_address"]:
        await _check_mac(tx, port.row, changes["mac_address"])
    groups = await _changed_groups(tx, port, after, body)
    if body.get("fixed_ips") is not None:
        subnets = await of_network(tx, port.row["network_id"])
        fixed_ips = await addressing.replace(tx, after, subnets, port.fixed_ips, body["fixed_ips"])
        await _release_floating(tx, port, fixed_ips)
        port = port._replace(fixed_ips=fixed_ips)
    return await model.change(tx, port, changes, groups, now)


def _columns(body: dict[str, Any]) -> Row:
    changes: Row = {}
    for name, value in body.items():
        if name in _COLUMNS:
            changes[_COLUMNS[name]] = value or ""
        elif name in _DOCUMENTS:
            changes[_DOCUMENTS[name]] = rows.dumps(value or ({} if name == "binding:profile" else []))
        elif name in _BOOLEANS:
            changes[name] = truth(value)
        elif name == "mac_address":
            changes[name] = model.normal_mac(value)
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
    asked = body.get("security_groups")
    groups = port.groups if asked is None else list(dict.fromkeys(asked))
    if groups and not after["port_security_enabled"]:
        if asked:
            _check_secured(after)
        raise conflict(
            "PortSecurityPortHasSecurityGroup",
            "Port has security group associated. Cannot disable port security or IP address until security group is "
            "removed.",
        )
    if asked is None:
        return None
    if groups:
        await groups_model.check_usable(tx, after["project_id"], groups)
    return groups


def _check_secured(row: Row) -> None:
    if not row["port_security_enabled"]:
        raise invalid(
            "Port security must be enabled and port must have an IP address in order to use security groups.",
            "PortSecurityAndIPRequiredForSecurityGroups",
        )


async def _release_floating(tx: Transaction, port: Port, fixed_ips: list[addressing.FixedIp]) -> None:
    """Floating addresses that led to an address which the port no longer has lead nowhere."""
    lost = {fixed["ip_address"] for fixed in port.fixed_ips} - {fixed["ip_address"] for fixed in fixed_ips}
    if lost:
        await tx.execute(
            "UPDATE floating_ips SET port_id = NULL, fixed_ip_address = NULL, router_id = NULL, status = 'DOWN' "
            "WHERE port_id = $1 AND fixed_ip_address = ANY($2)",
            port.row["id"],
            sorted(lost),
        )
