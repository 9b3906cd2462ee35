"""Records and rules of ports, with their fixed IPs and security groups."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from msgspec import Struct, structs

from kilonova import store
from kilonova.network import resources
from kilonova.network.addresses import Cursors
from kilonova.network.errors import conflict, group_not_found, invalid
from kilonova.network.networks.model import Network
from kilonova.network.ports import trunk_details
from kilonova.network.ports.fixed_ips import Allocation, FixedIp, FixedIpRequest
from kilonova.network.resources import Resource
from kilonova.network.schemas import to_bool
from kilonova.network.subnets.model import Subnet
from kilonova.store import Reader, Row, Transaction

UNBOUND, BOUND, BINDING_FAILED = "unbound", "bridge", "binding_failed"
MAC_PREFIX = "fa:16:3e"
_MAC_ATTEMPTS = 16

# Ports of routers and floating IPs. Clients cannot delete them by themselves.
SERVICE_OWNERS = ("network:router_interface", "network:router_gateway", "network:floatingip")


# A request's `ip_version` may be 4.0, which JSON Schema considers equal to 4.
DhcpOption = dict[str, str | int | float | None]


class Port(Resource, frozen=True):
    table: ClassVar[str] = "ports"

    name: str
    network_id: str
    mac_address: str
    admin_state_up: bool
    status: str
    device_id: str
    device_owner: str
    port_security_enabled: bool
    host_id: str
    vnic_type: str
    profile: dict[str, object]
    allowed_address_pairs: list[dict[str, str]]
    extra_dhcp_opts: list[DhcpOption]


class PortDetails(Struct, frozen=True):
    """`groups` are the ids of its security groups, `trunk` the trunk of which it is the parent."""

    port: Port
    fixed_ips: list[FixedIp]
    groups: list[str]
    trunk: dict[str, object] | None = None


def new_port(project_id: str, network: Network, body: Mapping[str, Any], now: float) -> Port:
    """A new port. If the request names no MAC address, `create` chooses one."""
    port = Port(
        **resources.standard_columns(project_id, body, now),
        name=body.get("name", ""),
        network_id=network.id,
        mac_address=normalize_mac(body["mac_address"]) if "mac_address" in body else "",
        admin_state_up=to_bool(body.get("admin_state_up", True)),
        status="DOWN",
        device_id=body.get("device_id", ""),
        device_owner=body.get("device_owner", ""),
        port_security_enabled=to_bool(body.get("port_security_enabled", network.port_security_enabled)),
        host_id=body.get("binding:host_id") or "",
        vnic_type=body.get("binding:vnic_type", "normal"),
        profile=body.get("binding:profile") or {},
        allowed_address_pairs=body.get("allowed_address_pairs") or [],
        extra_dhcp_opts=body.get("extra_dhcp_opts") or [],
    )
    return structs.replace(port, status=stored_status(port))


def vif_type(host: str, vnic_type: str) -> str:
    """The vif type of a binding. Only ports with vnic_type normal can be bound."""
    if not host:
        return UNBOUND
    return BOUND if vnic_type == "normal" else BINDING_FAILED


def stored_status(port: Port) -> str:
    """The status in the port's row: ACTIVE once bound. `status` corrects it for ports on networked hosts."""
    if port.device_owner == "network:floatingip":
        return "N/A"
    is_bound = vif_type(port.host_id, port.vnic_type) == BOUND or port.device_owner in SERVICE_OWNERS
    return "ACTIVE" if is_bound and port.admin_state_up else "DOWN"


def normalize_mac(mac: str) -> str:
    mac = mac.lower().replace("-", ":")
    if mac == "00:00:00:00:00:00":
        raise invalid("mac_address 00:00:00:00:00:00 is not allowed")
    return mac


async def create(
    tx: Transaction,
    cursors: Cursors,
    port: Port,
    subnets: Sequence[Subnet],
    wanted: Sequence[FixedIpRequest] | None,
    groups: list[str],
) -> PortDetails:
    port = await _insert(tx, port)
    fixed_ips = await Allocation(tx, cursors, port, subnets).assign(wanted)
    await _add_groups(tx, port.id, groups)
    return PortDetails(port, fixed_ips, groups)


async def _insert(tx: Transaction, port: Port) -> Port:
    row = port.encode()
    if port.mac_address:
        if not await _try_insert(tx, row):
            raise conflict(
                "MacAddressInUse",
                f"Unable to complete operation for network {port.network_id}. The mac address {port.mac_address} is "
                "in use.",
            )
        return port
    for _ in range(_MAC_ATTEMPTS):
        tail = os.urandom(3).hex()
        mac = row["mac_address"] = f"{MAC_PREFIX}:{tail[:2]}:{tail[2:4]}:{tail[4:]}"
        if await _try_insert(tx, row):
            return structs.replace(port, mac_address=mac)
    raise conflict("MacAddressGenerationFailure", f"No free MAC address was found on network {port.network_id}.")


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


async def change(
    tx: Transaction, details: PortDetails, changes: Mapping[str, object], groups: list[str] | None, now: float
) -> PortDetails:
    """Write changed columns and groups. Addresses are changed before, by `Allocation.replace`."""
    before = details.port
    status = stored_status(structs.replace(before, **changes))
    port = await resources.update(tx, before, {**changes, "status": status}, now)
    if port.host_id != before.host_id:
        # A port has one binding per host, and an unbound port has none.
        await delete_standby_bindings(tx, port.id, port.host_id)
        await trunk_details.move_subports(tx, port, now)
    if groups is not None and groups != details.groups:
        await tx.execute("DELETE FROM port_security_groups WHERE port_id = $1", port.id)
        await _add_groups(tx, port.id, groups)
    return structs.replace(details, port=port, groups=details.groups if groups is None else groups)


async def delete_standby_bindings(tx: Transaction, port_id: str, host: str) -> None:
    """Delete the inactive binding to the host, or all inactive bindings if `host` is empty."""
    await tx.execute("DELETE FROM standby_bindings WHERE port_id = $1 AND $2 IN ('', host)", port_id, host)


async def mac_in_use(tx: Transaction, port: Port, mac: str) -> bool:
    sql = "SELECT 1 FROM ports WHERE network_id = $1 AND mac_address = $2 AND id <> $3"
    return bool(await tx.fetch_value(sql, port.network_id, mac, port.id))


async def remove(tx: Transaction, port_id: str) -> None:
    """Delete the port, and disassociate its floating IPs."""
    await tx.execute(
        "UPDATE floating_ips SET port_id = NULL, fixed_ip_address = NULL, router_id = NULL, status = 'DOWN' "
        "WHERE port_id = $1",
        port_id,
    )
    await resources.delete(tx, Port, port_id)


async def load_details(reader: Reader, ports: Sequence[Port]) -> list[PortDetails]:
    """Load the fixed IPs, security groups and trunks of ports."""
    if not ports:
        return []
    ids = [port.id for port in ports]
    fixed_ips: dict[str, list[FixedIp]] = {port_id: [] for port_id in ids}
    for row in await reader.fetch(
        "SELECT port_id, subnet_id, ip_address FROM port_addresses WHERE port_id = ANY($1) ORDER BY port_id, position",
        ids,
    ):
        fixed_ips[row["port_id"]].append(FixedIp.decode(row))
    groups: dict[str, list[str]] = {port_id: [] for port_id in ids}
    for row in await reader.fetch(
        "SELECT port_id, security_group_id FROM port_security_groups WHERE port_id = ANY($1)", ids
    ):
        groups[row["port_id"]].append(row["security_group_id"])
    trunks = await trunk_details.load_trunks(reader, ids)
    return [PortDetails(port, fixed_ips[port.id], sorted(groups[port.id]), trunks.get(port.id)) for port in ports]


_COLUMNS = Port.__struct_fields__
_INSERT = (
    f"INSERT INTO ports ({', '.join(_COLUMNS)}) "
    f"VALUES ({', '.join(f'${number}' for number in range(1, len(_COLUMNS) + 1))}) "
    "ON CONFLICT (network_id, mac_address) DO NOTHING"
)
