"""Moves in the database: source, destination and flavors of a migration. Its status is derived from its operation."""

from __future__ import annotations

from typing import ClassVar, TypeVar

from msgspec import Struct, structs

from kilonova import clock
from kilonova.compute.servers.server import EmbeddedFlavor, Server
from kilonova.hosts.messages import MigrationState
from kilonova.operations import Operation, begin
from kilonova.store import Reader, Transaction
from kilonova.store.insert import insert_row
from kilonova.store.records import Record, encode_document

MIGRATION, RESIZE, LIVE, EVACUATION = "migration", "resize", "live-migration", "evacuation"
CONFIRMED, REVERTED, CLEANED = "confirmed", "reverted", "cleaned"
P = TypeVar("P")


class MoveFlavor(Struct, frozen=True):
    """A copy of a flavor, with the flavor's id."""

    flavor_id: str
    name: str
    vcpus: int
    ram: int
    disk: int
    ephemeral: int
    swap: int
    extra_specs: dict[str, str]

    @classmethod
    def of(cls, flavor_id: str, flavor: EmbeddedFlavor) -> MoveFlavor:
        return cls(flavor_id, *structs.astuple(flavor))

    @property
    def embedded(self) -> EmbeddedFlavor:
        return EmbeddedFlavor(*structs.astuple(self)[1:])


class Migration(Record, frozen=True):
    table: ClassVar[str] = "moves"

    id: int
    operation_id: str
    server_id: str
    project_id: str
    user_id: str
    type: str
    source_host: str
    source_node: str
    dest_host: str | None
    dest_node: str | None
    old_flavor: MoveFlavor
    new_flavor: MoveFlavor
    old_vm_state: str
    old_power_state: int
    transfer: MigrationState | None
    outcome: str | None
    created_at: float
    updated_at: float


async def begin_move(
    tx: Transaction,
    operation: type[Operation[P]],
    server: Server,
    *,
    type: str,
    params: P,
    user_id: str,
    request_id: str | None,
    new_flavor: MoveFlavor | None = None,
    without: frozenset[str] = frozenset(),
) -> str:
    """Write the operation, without the steps `without`, and its move."""
    operation_id = await begin(
        tx,
        operation,
        params=params,
        server_id=server.id,
        project_id=server.project_id,
        user_id=user_id,
        request_id=request_id,
        host=server.host,
        without=without,
    )
    old = MoveFlavor.of(server.flavor_id, server.flavor)
    now = clock.now()
    move = {
        "operation_id": operation_id,
        "server_id": server.id,
        "project_id": server.project_id,
        "user_id": user_id,
        "type": type,
        "source_host": server.host,
        "source_node": server.hypervisor_hostname,
        "old_flavor": encode_document(old),
        "new_flavor": encode_document(new_flavor or old),
        "old_vm_state": server.vm_state,
        "old_power_state": server.power_state,
        "created_at": now,
        "updated_at": now,
    }
    await insert_row(tx, "moves", move)
    return operation_id


async def get_by_operation(reader: Reader, operation_id: str) -> Migration:
    row = await reader.fetch_one("SELECT * FROM moves WHERE operation_id = $1", operation_id)
    assert row is not None, f"operation {operation_id} has no row in moves"
    return Migration.decode(row)


async def find_unconfirmed(reader: Reader, server_id: str) -> Migration | None:
    """The resize of the server that is neither confirmed nor reverted; its source keeps the allocation and guest."""
    return Migration.decode_optional(await reader.fetch_one(_UNCONFIRMED, server_id))


async def set_destination(tx: Transaction, operation_id: str, host: str | None, node: str | None) -> None:
    await tx.execute(
        "UPDATE moves SET dest_host = $2, dest_node = $3, updated_at = $4 WHERE operation_id = $1",
        operation_id,
        host,
        node,
        clock.now(),
    )


async def set_transfer(tx: Transaction, operation_id: str, transfer: MigrationState | None) -> None:
    """Write the progress of a live migration."""
    text = None if transfer is None else encode_document(structs.asdict(transfer))
    await tx.execute(
        "UPDATE moves SET transfer = $2, updated_at = $3 WHERE operation_id = $1", operation_id, text, clock.now()
    )


async def set_outcome(tx: Transaction, operation_id: str, outcome: str) -> None:
    await tx.execute(
        "UPDATE moves SET outcome = $2, updated_at = $3 WHERE operation_id = $1", operation_id, outcome, clock.now()
    )


_UNCONFIRMED = f"""
SELECT m.* FROM moves m JOIN operations o ON o.id = m.operation_id
WHERE m.server_id = $1 AND m.type IN ('{MIGRATION}', '{RESIZE}') AND m.outcome IS NULL AND o.state = 'done'
ORDER BY m.id DESC LIMIT 1
"""
