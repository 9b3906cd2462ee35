"""Records and rules of networks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from msgspec import structs

from kilonova.http.errors import Conflict
from kilonova.network import resources
from kilonova.network.addresses import Cursors
from kilonova.network.errors import conflict, invalid
from kilonova.network.resources import Resource
from kilonova.network.schemas import to_bool
from kilonova.store import Reader, Transaction

OVERLAY = "vxlan"
MAX_OVERLAY_ID = 2**24 - 1
MAX_VLAN_ID = 4094
# The overlay adds 50 bytes of outer headers to each packet.
OVERLAY_MTU = 1450
PHYSICAL_MTU = 1500


class Network(Resource, frozen=True):
    table: ClassVar[str] = "networks"

    name: str
    status: str
    admin_state_up: bool
    shared: bool
    external: bool
    is_default: bool
    mtu: int
    port_security_enabled: bool
    network_type: str
    physical_network: str
    segmentation_id: int | None
    availability_zone_hints: list[str]


COLUMNS = {
    "name": "name",
    "admin_state_up": "admin_state_up",
    "shared": "shared",
    "router:external": "external",
    "is_default": "is_default",
    "mtu": "mtu",
    "port_security_enabled": "port_security_enabled",
    "description": "description",
}
_BOOLEANS = ("admin_state_up", "shared", "router:external", "is_default", "port_security_enabled")


def new_network(project_id: str, body: Mapping[str, Any], now: float) -> Network:
    """A new network, with a segmentation id only if the request names one."""
    kind, physical, segment = _provider_attributes(body)
    return Network(
        **resources.standard_columns(project_id, body, now),
        name=body.get("name", ""),
        status="ACTIVE",
        admin_state_up=to_bool(body.get("admin_state_up", True)),
        shared=to_bool(body.get("shared", False)),
        external=to_bool(body.get("router:external", False)),
        is_default=to_bool(body.get("is_default", False)),
        mtu=body.get("mtu") or (PHYSICAL_MTU if kind in ("flat", "vlan", "local") else OVERLAY_MTU),
        port_security_enabled=to_bool(body.get("port_security_enabled", True)),
        network_type=kind,
        physical_network=physical,
        segmentation_id=segment,
        availability_zone_hints=body.get("availability_zone_hints", []),
    )


def _provider_attributes(body: Mapping[str, Any]) -> tuple[str, str, int | None]:
    kind = body.get("provider:network_type") or OVERLAY
    physical = body.get("provider:physical_network") or ""
    given = body.get("provider:segmentation_id")
    segment = None if given is None else int(given)
    if kind in ("flat", "vlan") and not physical:
        raise invalid(f"provider:physical_network required for {kind} networks")
    if kind not in ("flat", "vlan") and physical:
        raise invalid(f"provider:physical_network specified for {kind} network")
    if kind in ("flat", "local") and segment is not None:
        raise invalid(f"provider:segmentation_id specified for {kind} network")
    last = MAX_VLAN_ID if kind == "vlan" else MAX_OVERLAY_ID
    if (kind == "vlan" or segment is not None) and segment not in range(1, last + 1):
        raise invalid(f"provider:segmentation_id of a {kind} network must be from 1 to {last}")
    return kind, physical, segment


async def create(tx: Transaction, network: Network) -> Network:
    network = await with_segment(tx, network)
    await resources.insert(tx, network)
    return network


async def with_segment(tx: Transaction, network: Network) -> Network:
    """The network with a free segmentation id, if it needs one and has none."""
    if network.segmentation_id is not None or network.network_type in ("flat", "local"):
        return network
    return structs.replace(network, segmentation_id=await _free_segment(tx, network.network_type))


def segment_in_use(network: Network) -> Conflict:
    if network.network_type == "vlan":
        return conflict(
            "VlanIdInUse",
            f"Unable to create the network. The VLAN {network.segmentation_id} on physical network "
            f"{network.physical_network} is in use.",
        )
    return conflict(
        "TunnelIdInUse", f"Unable to create the network. The tunnel ID {network.segmentation_id} is in use."
    )


async def _free_segment(tx: Transaction, kind: str) -> int:
    await tx.lock("network segments")
    last = await tx.fetch_value("SELECT max(segmentation_id) FROM networks WHERE network_type = $1", kind)
    if last is None or last < MAX_OVERLAY_ID:
        return int(last or 0) + 1
    gap = await tx.fetch_value(
        "SELECT min(a.segmentation_id) + 1 FROM networks a WHERE a.network_type = $1 AND NOT EXISTS "
        "(SELECT 1 FROM networks b WHERE b.network_type = $1 AND b.segmentation_id = a.segmentation_id + 1)",
        kind,
    )
    if gap > MAX_OVERLAY_ID:
        raise conflict("NoNetworkAvailable", "Unable to create the network. No tenant network is available.")
    return int(gap)


async def change(tx: Transaction, network: Network, body: Mapping[str, Any], now: float) -> Network:
    changes = {
        COLUMNS[name]: to_bool(value) if name in _BOOLEANS else (value or "" if name == "description" else value)
        for name, value in body.items()
    }
    if network.shared and changes.get("shared") is False:
        await _check_not_shared(tx, network)
    if network.external and changes.get("external") is False:
        await _check_no_gateways(tx, network)
    return await resources.update(tx, network, changes, now)


async def _check_not_shared(tx: Transaction, network: Network) -> None:
    others = await tx.fetch_value(
        "SELECT 1 FROM ports WHERE network_id = $1 AND project_id NOT IN ($2, '') LIMIT 1",
        network.id,
        network.project_id,
    )
    if others:
        raise conflict(
            "InvalidSharedSetting",
            f"Unable to reconfigure sharing settings for network {network.id}. Multiple tenants are using it.",
        )


async def _check_no_gateways(tx: Transaction, network: Network) -> None:
    used = await tx.fetch_value(
        "SELECT 1 FROM ports WHERE network_id = $1 "
        "AND device_owner IN ('network:floatingip', 'network:router_gateway') LIMIT 1",
        network.id,
    )
    if used:
        raise conflict(
            "ExternalNetworkInUse",
            f"External network {network.id} cannot be updated to be made non-external, since it has existing "
            "gateway ports.",
        )


async def remove(tx: Transaction, cursors: Cursors, network_id: str) -> None:
    """Delete the network with its subnets and unassociated floating IPs; refused while other ports are on it."""
    await resources.lock_for_delete(tx, Network, network_id)
    unassociated = (
        "DELETE FROM floating_ips WHERE floating_network_id = $1 AND port_id IS NULL RETURNING floating_port_id"
    )
    for floating in await tx.fetch(unassociated, network_id):
        await tx.execute("DELETE FROM ports WHERE id = $1", floating["floating_port_id"])
    in_use = await tx.fetch("SELECT id FROM ports WHERE network_id = $1 LIMIT 20", network_id)
    if in_use:
        raise network_in_use(network_id, [port["id"] for port in in_use])
    subnets = await tx.fetch("SELECT id FROM subnets WHERE network_id = $1", network_id)
    await tx.execute("DELETE FROM subnets WHERE network_id = $1", network_id)
    await resources.delete(tx, Network, network_id)
    for subnet in subnets:
        cursors.pop(subnet["id"], None)


def network_in_use(network_id: str, port_ids: list[str]) -> Conflict:
    named = f", id for these ports: {','.join(port_ids)}" if port_ids else ""
    return conflict(
        "NetworkInUse",
        f"Unable to complete operation on network {network_id}. There are one or more ports still in use on the "
        f"network{named}.",
    )


async def subnet_ids(reader: Reader, network_ids: Sequence[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {network_id: [] for network_id in network_ids}
    for row in await reader.fetch(
        "SELECT id, network_id FROM subnets WHERE network_id = ANY($1) ORDER BY created_at, id", network_ids
    ):
        found[row["network_id"]].append(row["id"])
    return found
