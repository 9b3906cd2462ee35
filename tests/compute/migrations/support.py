"""Inserts moves and their operations as rows in any state."""

from __future__ import annotations

from typing import Any

import orjson

from kilonova.ids import new_id
from kilonova.store import Transaction
from tests.support.cloud import DEMO, Cloud

ENDED = ("done", "failed", "cancelled")


def flavor(flavor_id: str, name: str = "m1.tiny") -> str:
    """The JSON of a move's flavor."""
    sizes = {"vcpus": 1, "ram": 512, "disk": 1, "ephemeral": 0, "swap": 0}
    return orjson.dumps({"flavor_id": flavor_id, "name": name, **sizes, "extra_specs": {}}).decode()


async def put_move(c: Cloud, server_id: str, type: str = "live-migration", **values: Any) -> str:
    """Insert a migration from host1 to host2, and return its uuid. `at` is its start; `values` set columns."""
    async with c.db.transaction() as tx:
        return await insert_move(tx, server_id, type, **values)


async def insert_move(
    tx: Transaction,
    server_id: str,
    type: str,
    *,
    state: str = "running",
    step: str = "choose host",
    at: float = 1000.0,
    updated_at: float | None = None,
    error: dict[str, Any] | None = None,
    undo_to: str | None = None,
    transfer: dict[str, int] | None = None,
    **move: Any,
) -> str:
    operation_id, changed = new_id(), at if updated_at is None else updated_at
    owner = {"server_id": server_id, "project_id": DEMO, "user_id": "member-id", "created_at": at}
    await _insert(
        tx,
        "operations",
        {
            **{key: move.get(key, value) for key, value in owner.items()},
            **dict.fromkeys(("kind", "action"), type),
            **dict.fromkeys(("params", "results", "note"), "{}"),
            "plan": "[]",
            **dict.fromkeys(("attempt", "epoch", "lease_until"), 0),
            **dict.fromkeys(("run_at", "round_started_at"), at),
            "id": operation_id,
            "state": state,
            "step": step,
            "undo_to": undo_to,
            "round": 1,
            "error": orjson.dumps(error).decode() if error else None,
            "cancel_requested": False,
            "updated_at": changed,
            "finished_at": changed if state in ENDED else None,
        },
    )
    await _insert(
        tx,
        "moves",
        {
            **owner,
            "operation_id": operation_id,
            "type": type,
            "source_host": "host1",
            "source_node": "host1.example",
            "dest_host": "host2",
            "dest_node": "host2.example",
            "old_flavor": flavor("1"),
            "new_flavor": flavor("2", "m1.small") if type == "resize" else flavor("1"),
            "old_vm_state": "active",
            "old_power_state": 1,
            "transfer": orjson.dumps(transfer).decode() if transfer else None,
            "updated_at": at,
            **move,
        },
    )
    return operation_id


async def _insert(tx: Transaction, table: str, row: dict[str, Any]) -> None:
    marks = ", ".join(f"${number}" for number in range(1, len(row) + 1))
    await tx.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})", *row.values())
