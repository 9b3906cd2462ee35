"""Moves in the database: who was moved from where to where. What became of a move is read from its operation."""

from __future__ import annotations

from typing import Any

import orjson

from kilonova import clock
from kilonova.operations import Operation, begin
from kilonova.store import Reader, Row, Transaction

MIGRATION, RESIZE, LIVE, EVACUATION = "migration", "resize", "live-migration", "evacuation"
CONFIRMED, REVERTED, CLEANED = "confirmed", "reverted", "cleaned"

_INSERT = """
INSERT INTO moves (operation_id, server_id, project_id, user_id, type, source_host, source_node, old_flavor,
    new_flavor, old_vm_state, old_power_state, created_at, updated_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $12)
"""


def params_of(**given: Any) -> dict[str, Any]:
    """Those of `operations.moving.Move`, and what else is given."""
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
    """Write the operation and its move. A flavor is the server's own copy of it, with `flavor_id`."""
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
    await tx.execute(
        _INSERT,
        operation_id,
        server["id"],
        server["project_id"],
        user_id,
        type,
        server["host"],
        server["hypervisor_hostname"],
        orjson.dumps(old).decode(),
        orjson.dumps(new_flavor or old).decode(),
        server["vm_state"],
        server["power_state"],
        clock.now(),
    )
    return operation_id


async def of_operation(reader: Reader, operation_id: str) -> Row:
    row = await reader.fetch_one("SELECT * FROM moves WHERE operation_id = $1", operation_id)
    assert row is not None, f"operation {operation_id} moves nothing"
    return row


async def waiting(reader: Reader, server_id: str) -> Row | None:
    """The move of a resized server that is neither confirmed nor reverted; its source's share and guest are kept."""
    return await reader.fetch_one(_WAITING, server_id)


async def set_destination(tx: Transaction, operation_id: str, host: str | None, node: str | None) -> None:
    await tx.execute(
        "UPDATE moves SET dest_host = $2, dest_node = $3, updated_at = $4 WHERE operation_id = $1",
        operation_id,
        host,
        node,
        clock.now(),
    )


async def set_transfer(tx: Transaction, operation_id: str, transfer: dict[str, int] | None) -> None:
    """How far a live migration is; the keys are those of `hosts.messages.MigrationState`."""
    text = None if transfer is None else orjson.dumps(transfer).decode()
    await tx.execute(
        "UPDATE moves SET transfer = $2, updated_at = $3 WHERE operation_id = $1", operation_id, text, clock.now()
    )


async def set_outcome(tx: Transaction, operation_id: str, outcome: str) -> None:
    await tx.execute(
        "UPDATE moves SET outcome = $2, updated_at = $3 WHERE operation_id = $1", operation_id, outcome, clock.now()
    )


_WAITING = f"""
SELECT m.* FROM moves m JOIN operations o ON o.id = m.operation_id
WHERE m.server_id = $1 AND m.type IN ('{MIGRATION}', '{RESIZE}') AND m.outcome IS NULL AND o.state = 'done'
ORDER BY m.id DESC LIMIT 1
"""
