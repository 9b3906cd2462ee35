"""Records and rules of trunks. The host of a subport is that of its parent (`ports/trunk_details.py`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from kilonova import store
from kilonova.http.errors import NotFound
from kilonova.network import resources
from kilonova.network.errors import conflict, port_not_found
from kilonova.network.ports import trunk_details
from kilonova.network.ports.model import Port
from kilonova.network.ports.trunk_details import SUBPORT_OWNER
from kilonova.network.resources import Resource
from kilonova.network.schemas import to_bool
from kilonova.store import Reader, Transaction
from kilonova.store.records import Record

VLAN = "vlan"


class Trunk(Resource, frozen=True):
    table: ClassVar[str] = "trunks"

    name: str
    port_id: str
    admin_state_up: bool


class Subport(Record, frozen=True):
    table: ClassVar[str] = "trunk_subports"

    port_id: str
    trunk_id: str
    segmentation_type: str
    segmentation_id: int


def not_found(trunk_id: str) -> NotFound:
    return NotFound(f"Trunk {trunk_id} could not be found.", code="TrunkNotFound")


async def create(tx: Transaction, project_id: str, body: Mapping[str, Any], now: float) -> Trunk:
    parent = await _lock_port(tx, body["port_id"])
    if parent.host_id:
        message = f"Port {parent.id} is currently in use and is not eligible for use as a parent port."
        raise conflict("ParentPortInUse", message)
    trunk = Trunk(
        **resources.standard_columns(project_id, body, now),
        name=body.get("name", ""),
        port_id=parent.id,
        admin_state_up=to_bool(body.get("admin_state_up", True)),
    )
    await resources.insert(tx, trunk)
    await add_subports(tx, trunk, body.get("sub_ports", []), now)
    return trunk


async def _lock_port(tx: Transaction, port_id: str) -> Port:
    """Lock a port that is in no trunk."""
    port = await resources.lock(tx, Port, port_id)
    if port is None:
        raise port_not_found(port_id)
    await trunk_details.check_in_no_trunk(tx, port_id)
    return port


async def add_subports(tx: Transaction, trunk: Trunk, requested: Sequence[Mapping[str, Any]], now: float) -> None:
    for one in requested:
        port = await _lock_port(tx, one["port_id"])
        if port.device_id or port.host_id:
            raise conflict("PortInUse", f"Unable to complete operation on port {port.id}: it is attached to a device.")
        subport = Subport(port.id, trunk.id, VLAN, int(one["segmentation_id"]))
        try:
            await resources.insert(tx, subport)
        except store.Conflict:
            raise conflict(
                "DuplicateSubPort",
                f"segmentation_type {VLAN} and segmentation_id {subport.segmentation_id} already in use on trunk "
                f"{trunk.id}.",
            ) from None
        await resources.update(tx, port, {"device_owner": SUBPORT_OWNER}, now)
    await _bind_subports(tx, trunk, now)


async def _bind_subports(tx: Transaction, trunk: Trunk, now: float) -> None:
    parent = await resources.find(tx, Port, trunk.port_id)
    if parent is not None and parent.host_id:
        await trunk_details.move_subports(tx, parent, now)


async def remove_subports(tx: Transaction, trunk: Trunk, port_ids: Iterable[str], now: float) -> None:
    for port_id in port_ids:
        sql = "DELETE FROM trunk_subports WHERE port_id = $1 AND trunk_id = $2"
        if not await tx.execute(sql, port_id, trunk.id):
            raise NotFound(
                f"SubPort on trunk {trunk.id} with parent port {port_id} could not be found.", code="SubPortNotFound"
            )
        port = await resources.lock(tx, Port, port_id)
        if port is not None:
            await resources.update(tx, port, {"device_owner": "", "host_id": "", "status": "DOWN"}, now)


async def remove(tx: Transaction, trunk: Trunk, now: float) -> None:
    parent = await resources.lock(tx, Port, trunk.port_id)
    if parent is not None and parent.host_id:
        raise conflict("TrunkInUse", f"Trunk {trunk.id} is currently in use.")
    found = await subports_of(tx, [trunk.id])
    await remove_subports(tx, trunk, [subport.port_id for subport in found[trunk.id]], now)
    await resources.delete(tx, Trunk, trunk.id)


async def subports_of(reader: Reader, trunk_ids: Sequence[str]) -> dict[str, list[Subport]]:
    """The subports of each trunk, ordered by VLAN id."""
    sql = "SELECT * FROM trunk_subports WHERE trunk_id = ANY($1) ORDER BY trunk_id, segmentation_id"
    found: dict[str, list[Subport]] = {trunk_id: [] for trunk_id in trunk_ids}
    for subport in Subport.decode_all(await reader.fetch(sql, list(trunk_ids))):
        found[subport.trunk_id].append(subport)
    return found


async def active_trunks(reader: Reader, trunks: Sequence[Trunk]) -> set[str]:
    """The ids of the trunks whose parent port has the stored status ACTIVE."""
    sql = f"SELECT r.id FROM trunks r WHERE r.id = ANY($1) AND {IS_ACTIVE}"
    return {row["id"] for row in await reader.fetch(sql, [trunk.id for trunk in trunks])}


# SQL condition for trunk `r`.
IS_ACTIVE = "EXISTS (SELECT 1 FROM ports p WHERE p.id = r.port_id AND p.status = 'ACTIVE')"
