"""Rows of network resources: the standard attributes that all have, and the SQL that writes a row."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import lru_cache
from typing import Any

import orjson

from kilonova import clock, store
from kilonova.http import Context
from kilonova.ids import new_id
from kilonova.network.errors import conflict
from kilonova.store import Reader, Row, Transaction

# Notified after changes that may alter the network plans of hosts.
CHANGES_CHANNEL = "networks"
# Stands before and after each tag in the column `tags`.
_TAG_MARK = "\x1f"


@asynccontextmanager
async def write_transaction(ctx: Context) -> AsyncIterator[Transaction]:
    """A transaction that notifies hosts of changes. A conflict with another transaction becomes HTTP 409."""
    try:
        async with ctx.db.transaction() as tx:
            yield tx
            tx.notify(CHANGES_CHANNEL)
    except store.Conflict:
        raise conflict(
            "RetryRequest", "A resource that the request refers to was changed meanwhile; try again."
        ) from None


def standard_columns(project_id: str, body: dict[str, Any], now: float) -> Row:
    return {
        "id": new_id(),
        "project_id": project_id,
        "description": body.get("description") or "",
        "tags": "",
        "revision_number": 1,
        "created_at": now,
        "updated_at": now,
    }


def standard_view(row: Row) -> dict[str, Any]:
    """The standard attributes as the API shows them."""
    return {
        "project_id": row["project_id"],
        "tenant_id": row["project_id"],
        "description": row["description"],
        "tags": unpack_tags(row["tags"]),
        "revision_number": row["revision_number"],
        "created_at": clock.iso(row["created_at"]),
        "updated_at": clock.iso(row["updated_at"]),
    }


def pack_tags(tags: list[str]) -> str:
    return "".join(f"{_TAG_MARK}{tag}{_TAG_MARK}" for tag in sorted(set(tags)))


def unpack_tags(packed: str) -> list[str]:
    return packed[1:-1].split(_TAG_MARK + _TAG_MARK) if packed else []


def to_json(value: Any) -> str:
    return orjson.dumps(value).decode()


async def get(reader: Reader, table: str, row_id: str) -> Row | None:
    return await reader.fetch_one(f"SELECT * FROM {table} WHERE id = $1", row_id)


async def lock(tx: Transaction, table: str, row_id: str) -> Row | None:
    """Lock the row against changes until the transaction ends. Other transactions may still refer to it."""
    return await tx.fetch_one(f"SELECT * FROM {table} WHERE id = $1 FOR NO KEY UPDATE", row_id)


async def lock_for_delete(tx: Transaction, table: str, row_id: str) -> None:
    """Lock a row that will be deleted: until the transaction ends, no other row can be made that refers to it.

    Lock before anything else, so that a deletion and a creation of a dependent row cannot deadlock.
    """
    await tx.fetch_one(f"SELECT id FROM {table} WHERE id = $1 FOR UPDATE", row_id)


async def insert(tx: Transaction, table: str, row: Row) -> None:
    await tx.execute(_insert(table, tuple(row)), *row.values())


async def update(tx: Transaction, table: str, row: Row, changes: Row, now: float) -> Row:
    """Write the changes with a new revision number. Returns the changed row."""
    changes = {**changes, "revision_number": row["revision_number"] + 1, "updated_at": now}
    await tx.execute(_update(table, tuple(changes)), row["id"], *changes.values())
    return {**row, **changes}


async def delete(tx: Transaction, table: str, row_id: str) -> bool:
    return bool(await tx.execute(f"DELETE FROM {table} WHERE id = $1", row_id))


@lru_cache(maxsize=64)
def _insert(table: str, columns: tuple[str, ...]) -> str:
    values = ", ".join(f"${number}" for number in range(1, len(columns) + 1))
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({values})"


@lru_cache(maxsize=256)
def _update(table: str, columns: tuple[str, ...]) -> str:
    values = ", ".join(f"{column} = ${number}" for number, column in enumerate(columns, start=2))
    return f"UPDATE {table} SET {values} WHERE id = $1"
