"""Moves in the database: source, destination and flavors of a migration. Its status is derived from its operation."""

from __future__ import annotations

from typing import Any

import orjson

from kilonova import clock
from kilonova.operations import Operation, begin
from kilonova.store import Reader, Row, Transaction
from kilonova.store.insert import insert_row

MIGRATION, RESIZE, LIVE, EVACUATION = "migration", "resize", "live-migration", "evacuation"
CONFIRMED, REVERTED, CLEANED = "confirmed", "reverted", "cleaned"


def move_params(**given: Any) -> dict[str, Any]:
    """The parameters of a move operation: the defaults, overridden and extended by `given`."""
    return {"host": None, "unverified": False, "flavor": None, "same_host": False, **given}


async def begin_move(
    tx: Transaction,
    operation: type[Operation],
    server: Row,
    *,
    type: str,
    params: dict[str, Any],
    user_id: str,
    request_id: str | None,
    new_flavor: dict[str, Any] | None = None,
) -> str:
    """Write the operation and its move. A flavor is the server's copy, with `flavor_id`."""
    operation_id = await begin(
        tx,
        operation,
        params=params,
        server_id=server["id"],
        project_id=server["project_id"],
        user_id=user_id,
        request_id=request_id,
        host=server["host"],
    )
    old = {"flavor_id": server["flavor_id"], **orjson.loads(server["flavor"])}
    now = clock.now()
    move = {
        "operation_id": operation_id,
        "server_id": server["id"],
        "project_id": server["project_id"],
        "user_id": user_id,
        "type": type,
        "source_host": server["host"],
        "source_node": server["hypervisor_hostname"],
        "old_flavor": orjson.dumps(old).decode(),
        "new_flavor": orjson.dumps(new_flavor or old).decode(),
        "old_vm_state": server["vm_state"],
        "old_power_state": server["power_state"],
        "created_at": now,
        "updated_at": now,
    }
    await insert_row(tx, "moves", move)
    return operation_id


async def get_by_operation(reader: Reader, operation_id: str) -> Row:
    row = await reader.fetch_one("SELECT * FROM moves WHERE operation_id = $1", operation_id)
    assert row is not None, f"operation {operation_id} has no row in moves"
    return row


async def find_unconfirmed(reader: Reader, server_id: str) -> Row | None:
    """The resize of the server that is neither confirmed nor reverted; its source keeps the allocation and guest."""
    return await reader.fetch_one(_UNCONFIRMED, server_id)


async def set_destination(tx: Transaction, operation_id: str, host: str | None, node: str | None) -> None:
    await tx.execute(
        "UPDATE moves SET dest_host = $2, dest_node = $3, updated_at = $4 WHERE operation_id = $1",
        operation_id,
        host,
        node,
        clock.now(),
    )


async def set_transfer(tx: Transaction, operation_id: str, transfer: dict[str, int] | None) -> None:
    """Write the progress of a live migration; the keys are those of `hosts.messages.MigrationState`."""
    text = None if transfer is None else orjson.dumps(transfer).decode()
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
