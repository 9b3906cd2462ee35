"""Rows of operations and moves, written without running anything."""

from __future__ import annotations

from typing import Any

from kilonova.store import Database
from kilonova.store.insert import insert_row

UNFINISHED = {"finished_at": None, "state": "queued", "run_at": 1e12}


async def put_operation(db: Database, operation_id: str, **values: Any) -> None:
    row = {
        "id": operation_id,
        "kind": "boot",
        "action": "create",
        "state": "done",
        "step": "last",
        "finished_at": 1.0,
        "params": "{}",
        "plan": "[]",
        "results": "{}",
        "note": "{}",
        "round": 1,
        "attempt": 0,
        "cancel_requested": False,
        "lease_until": 0.0,
        "epoch": 1,
        **dict.fromkeys(("run_at", "created_at", "updated_at", "round_started_at"), 1.0),
        **values,
    }
    async with db.transaction() as tx:
        await insert_row(tx, "operations", row)


async def put_move(db: Database, operation_id: str, server_id: str, **values: Any) -> None:
    row = {
        "operation_id": operation_id,
        "server_id": server_id,
        "project_id": "p",
        "user_id": "u",
        "type": "resize",
        "source_host": "a",
        "source_node": "a",
        "old_flavor": "{}",
        "new_flavor": "{}",
        "old_vm_state": "active",
        "old_power_state": 1,
        "created_at": 1.0,
        "updated_at": 1.0,
        **values,
    }
    async with db.transaction() as tx:
        await insert_row(tx, "moves", row)
