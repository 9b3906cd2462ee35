"""Trunks as ports use them: shows the trunk of a parent port, and binds subports to the host of their parent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kilonova.network.errors import conflict
from kilonova.store import Reader, Transaction

if TYPE_CHECKING:
    from kilonova.network.ports.model import Port

SUBPORT_OWNER = "trunk:subport"
_TRUNKS = """
SELECT t.id, t.port_id AS parent_id, s.port_id, s.segmentation_type, s.segmentation_id, p.mac_address
FROM trunks t
LEFT JOIN trunk_subports s ON s.trunk_id = t.id
LEFT JOIN ports p ON p.id = s.port_id
WHERE t.port_id = ANY($1)
ORDER BY s.segmentation_id
"""
_SUBPORTS_OF = "SELECT s.port_id FROM trunk_subports s JOIN trunks t ON t.id = s.trunk_id WHERE t.port_id = $1"
_MOVE = f"""
UPDATE ports SET host_id = $2, updated_at = $3, revision_number = revision_number + 1,
    status = CASE WHEN $2 <> '' AND admin_state_up THEN 'ACTIVE' ELSE 'DOWN' END
WHERE id IN ({_SUBPORTS_OF}) AND host_id <> $2
"""
# The device of the parent of port `r`, NULL if the port is in no trunk.
PARENT_DEVICE_SQL = (
    "(SELECT q.device_id FROM trunk_subports s JOIN trunks t ON t.id = s.trunk_id "
    "JOIN ports q ON q.id = t.port_id WHERE s.port_id = r.id)"
)


async def load_trunks(reader: Reader, port_ids: Sequence[str]) -> dict[str, dict[str, object]]:
    """The attribute `trunk_details` of each port that is a trunk's parent."""
    subports: dict[str, list[dict[str, object]]] = {}
    trunks: dict[str, dict[str, object]] = {}
    for row in await reader.fetch(_TRUNKS, list(port_ids)):
        found = subports.setdefault(row["parent_id"], [])
        trunks[row["parent_id"]] = {"trunk_id": row["id"], "sub_ports": found}
        if row["port_id"] is not None:
            names = ("port_id", "segmentation_type", "segmentation_id", "mac_address")
            found.append({name: row[name] for name in names})
    return trunks


async def move_subports(tx: Transaction, parent: Port, now: float) -> None:
    """Bind the subports to the host of their parent, or unbind them with it."""
    await tx.execute(_MOVE, parent.id, parent.host_id, now)


async def check_in_no_trunk(reader: Reader, port_id: str) -> None:
    """Refuse a port that is a parent or a subport."""
    if trunk_id := await reader.fetch_value("SELECT id FROM trunks WHERE port_id = $1", port_id):
        message = f"Port {port_id} is currently a parent port for trunk {trunk_id}."
        raise conflict("PortInUseAsTrunkParent", message)
    if trunk_id := await reader.fetch_value("SELECT trunk_id FROM trunk_subports WHERE port_id = $1", port_id):
        raise conflict("PortInUseAsSubPort", f"Port {port_id} is currently a subport for trunk {trunk_id}.")
