"""Rows and rules of ports, with their fixed IPs and security groups."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from kilonova import store
from kilonova.network import resources
from kilonova.network.errors import conflict, group_not_found, invalid
from kilonova.network.ports.fixed_ips import FixedIp, assign_fixed_ips
from kilonova.network.schemas import to_bool
from kilonova.store import Reader, Row, Transaction

UNBOUND, BOUND, BINDING_FAILED = "unbound", "bridge", "binding_failed"
MAC_PREFIX = "fa:16:3e"
_MAC_ATTEMPTS = 16

# Ports of routers and floating IPs. Clients cannot delete them by themselves.
SERVICE_OWNERS = ("network:router_interface", "network:router_gateway", "network:floatingip")


class Port(NamedTuple):
    row: Row
    fixed_ips: list[FixedIp]
    groups: list[str]


def new_row(project_id: str, network: Row, body: dict[str, Any], now: float) -> Row:
    row = {
        **resources.standard_columns(project_id, body, now),
        "name": body.get("name", ""),
        "network_id": network["id"],
        "mac_address": normalize_mac(body["mac_address"]) if "mac_address" in body else "",
        "admin_state_up": to_bool(body.get("admin_state_up", True)),
        "status": "DOWN",
        "device_id": body.get("device_id", ""),
        "device_owner": body.get("device_owner", ""),
        "port_security_enabled": to_bool(body.get("port_security_enabled", network["port_security_enabled"])),
        "host_id": body.get("binding:host_id") or "",
        "vnic_type": body.get("binding:vnic_type", "normal"),
        "profile": resources.to_json(body.get("binding:profile") or {}),
        "allowed_address_pairs": resources.to_json(body.get("allowed_address_pairs") or []),
        "extra_dhcp_opts": resources.to_json(body.get("extra_dhcp_opts") or []),
    }
    row["status"] = stored_status(row)
    return row


def vif_type(row: Row) -> str:
    """The vif type of the port's binding. Only ports with vnic_type normal can be bound."""
    if not row["host_id"]:
        return UNBOUND
    return BOUND if row["vnic_type"] == "normal" else BINDING_FAILED


def stored_status(row: Row) -> str:
    """The status in the port's row: ACTIVE once bound. `status` corrects it for ports on networked hosts."""
    if row["device_owner"] == "network:floatingip":
        return "N/A"
    is_bound = vif_type(row) == BOUND or row["device_owner"] in SERVICE_OWNERS
    return "ACTIVE" if is_bound and row["admin_state_up"] else "DOWN"


def normalize_mac(mac: str) -> str:
    mac = mac.lower().replace("-", ":")
    if mac == "00:00:00:00:00:00":
        raise invalid("mac_address 00:00:00:00:00:00 is not allowed")
    return mac


async def create(
    tx: Transaction, row: Row, subnets: list[Row], wanted: list[dict[str, Any]] | None, groups: list[str]
) -> Port:
    await _insert(tx, row)
    fixed_ips = await assign_fixed_ips(tx, row, subnets, wanted)
    await _add_groups(tx, row["id"], groups)
    return Port(row, fixed_ips, groups)


async def _insert(tx: Transaction, row: Row) -> None:
    if row["mac_address"]:
        if not await _try_insert(tx, row):
            raise conflict(
                "MacAddressInUse",
                f"Unable to complete operation for network {row['network_id']}. The mac address "
                f"{row['mac_address']} is in use.",
            )
        return
    for _ in range(_MAC_ATTEMPTS):
        tail = os.urandom(3).hex()
        row["mac_address"] = f"{MAC_PREFIX}:{tail[:2]}:{tail[2:4]}:{tail[4:]}"
        if await _try_insert(tx, row):
            return
    raise conflict("MacAddressGenerationFailure", f"No free MAC address was found on network {row['network_id']}.")


async def _try_insert(tx: Transaction, row: Row) -> bool:
    return bool(await tx.execute(_INSERT, *row.values()))


async def _add_groups(tx: Transaction, port_id: str, groups: list[str]) -> None:
    try:
        for group_id in groups:
            await tx.execute(
                "INSERT INTO port_security_groups (port_id, security_group_id) VALUES ($1, $2) ON CONFLICT DO NOTHING",
                port_id,
                group_id,
            )
    except store.Conflict:
        raise group_not_found(groups[0]) from None


async def change(tx: Transaction, port: Port, changes: Row, groups: list[str] | None, now: float) -> Port:
    """Write changed columns and groups. Addresses are changed before, by `replace_fixed_ips`."""
    after = {**port.row, **changes}
    changes["status"] = stored_status(after)
    row = await resources.update(tx, "ports", port.row, changes, now)
    if row["host_id"] != port.row["host_id"]:
        # A port has one binding per host, and an unbound port has none.
        await delete_standby_bindings(tx, row["id"], row["host_id"])
    if groups is not None and groups != port.groups:
        await tx.execute("DELETE FROM port_security_groups WHERE port_id = $1", row["id"])
        await _add_groups(tx, row["id"], groups)
    return Port(row, port.fixed_ips, port.groups if groups is None else groups)


async def delete_standby_bindings(tx: Transaction, port_id: str, host: str) -> None:
    """Delete the inactive binding to the host, or all inactive bindings if `host` is empty."""
    await tx.execute("DELETE FROM standby_bindings WHERE port_id = $1 AND $2 IN ('', host)", port_id, host)


async def mac_in_use(tx: Transaction, row: Row, mac: str) -> bool:
    return bool(
        await tx.fetch_value(
            "SELECT 1 FROM ports WHERE network_id = $1 AND mac_address = $2 AND id <> $3",
            row["network_id"],
            mac,
            row["id"],
        )
    )


async def remove(tx: Transaction, port_id: str) -> None:
    """Delete the port, and disassociate its floating IPs."""
    await tx.execute(
        "UPDATE floating_ips SET port_id = NULL, fixed_ip_address = NULL, router_id = NULL, status = 'DOWN' "
        "WHERE port_id = $1",
        port_id,
    )
    await resources.delete(tx, "ports", port_id)


async def load_details(reader: Reader, found: list[Row]) -> list[Port]:
    """Load the fixed IPs and security groups of port rows."""
    if not found:
        return []
    ids = [row["id"] for row in found]
    fixed_ips: dict[str, list[FixedIp]] = {port_id: [] for port_id in ids}
    for row in await reader.fetch(
        "SELECT port_id, subnet_id, ip_address FROM port_addresses WHERE port_id = ANY($1) ORDER BY port_id, position",
        ids,
    ):
        fixed_ips[row["port_id"]].append({"subnet_id": row["subnet_id"], "ip_address": row["ip_address"]})
    groups: dict[str, list[str]] = {port_id: [] for port_id in ids}
    for row in await reader.fetch(
        "SELECT port_id, security_group_id FROM port_security_groups WHERE port_id = ANY($1)", ids
    ):
        groups[row["port_id"]].append(row["security_group_id"])
    return [Port(row, fixed_ips[row["id"]], sorted(groups[row["id"]])) for row in found]


_COLUMNS = tuple(new_row("", {"id": "", "port_security_enabled": True}, {}, 0.0))
_INSERT = (
    f"INSERT INTO ports ({', '.join(_COLUMNS)}) "
    f"VALUES ({', '.join(f'${number}' for number in range(1, len(_COLUMNS) + 1))}) "
    "ON CONFLICT (network_id, mac_address) DO NOTHING"
)
