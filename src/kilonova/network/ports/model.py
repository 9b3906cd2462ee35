"""Ports in the database, with their addresses and security groups."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from kilonova import store
from kilonova.network import rows
from kilonova.network.errors import conflict, group_not_found, invalid
from kilonova.network.ports import addressing
from kilonova.network.ports.addressing import FixedIp
from kilonova.network.schema import truth
from kilonova.store import Reader, Row, Transaction

UNBOUND, BOUND, FAILED = "unbound", "bridge", "binding_failed"
MAC_PREFIX = "fa:16:3e"
_MAC_ATTEMPTS = 16

# Ports that belong to a router or a floating address go with it, not by themselves.
SERVICE_OWNERS = ("network:router_interface", "network:router_gateway", "network:floatingip")


class Port(NamedTuple):
    row: Row
    fixed_ips: list[FixedIp]
    groups: list[str]


def draft(project_id: str, network: Row, body: dict[str, Any], now: float) -> Row:
    row = {
        **rows.standard(project_id, body, now),
        "name": body.get("name", ""),
        "network_id": network["id"],
        "mac_address": normal_mac(body["mac_address"]) if "mac_address" in body else "",
        "admin_state_up": truth(body.get("admin_state_up", True)),
        "status": "DOWN",
        "device_id": body.get("device_id", ""),
        "device_owner": body.get("device_owner", ""),
        "port_security_enabled": truth(body.get("port_security_enabled", network["port_security_enabled"])),
        "host_id": body.get("binding:host_id") or "",
        "vnic_type": body.get("binding:vnic_type", "normal"),
        "profile": rows.dumps(body.get("binding:profile") or {}),
        "allowed_address_pairs": rows.dumps(body.get("allowed_address_pairs") or []),
        "extra_dhcp_opts": rows.dumps(body.get("extra_dhcp_opts") or []),
    }
    row["status"] = status_of(row)
    return row


def vif_type(row: Row) -> str:
    """How the port is plugged on its host. Only interfaces that are plain virtual ones can be."""
    if not row["host_id"]:
        return UNBOUND
    return BOUND if row["vnic_type"] == "normal" else FAILED


def status_of(row: Row) -> str:
    """A port is active as soon as it is bound. Hosts that make networks may have it otherwise: see liveness."""
    if row["device_owner"] == "network:floatingip":
        return "N/A"
    wired = vif_type(row) == BOUND or row["device_owner"] in SERVICE_OWNERS
    return "ACTIVE" if wired and row["admin_state_up"] else "DOWN"


def normal_mac(mac: str) -> str:
    mac = mac.lower().replace("-", ":")
    if mac == "00:00:00:00:00:00":
        raise invalid("the MAC address 00:00:00:00:00:00 cannot be given to a port")
    return mac


async def create(
    tx: Transaction, row: Row, subnets: list[Row], wanted: list[dict[str, Any]] | None, groups: list[str]
) -> Port:
    await _insert(tx, row)
    fixed_ips = await addressing.assign(tx, row, subnets, wanted)
    await _join(tx, row["id"], groups)
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


async def _join(tx: Transaction, port_id: str, groups: list[str]) -> None:
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
    """Write changed columns and groups; the addresses are changed before, by `addressing.replace`."""
    after = {**port.row, **changes}
    changes["status"] = status_of(after)
    row = await rows.update(tx, "ports", port.row, changes, now)
    if row["host_id"] != port.row["host_id"]:
        # A port has one binding a host, and one that is bound nowhere has none at all.
        await drop_standby(tx, row["id"], row["host_id"])
    if groups is not None and groups != port.groups:
        await tx.execute("DELETE FROM port_security_groups WHERE port_id = $1", row["id"])
        await _join(tx, row["id"], groups)
    return Port(row, port.fixed_ips, port.groups if groups is None else groups)


async def drop_standby(tx: Transaction, port_id: str, host: str) -> None:
    """Delete the binding that stands by on the host, or all of them if none is named."""
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
    """Delete the port; floating addresses that lead to it lead nowhere then."""
    await tx.execute(
        "UPDATE floating_ips SET port_id = NULL, fixed_ip_address = NULL, router_id = NULL, status = 'DOWN' "
        "WHERE port_id = $1",
        port_id,
    )
    await rows.delete(tx, "ports", port_id)


async def complete(reader: Reader, found: list[Row]) -> list[Port]:
    """Rows with their addresses and groups."""
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


_COLUMNS = tuple(draft("", {"id": "", "port_security_enabled": True}, {}, 0.0))
_INSERT = (
    f"INSERT INTO ports ({', '.join(_COLUMNS)}) "
    f"VALUES ({', '.join(f'${number}' for number in range(1, len(_COLUMNS) + 1))}) "
    "ON CONFLICT (network_id, mac_address) DO NOTHING"
)
