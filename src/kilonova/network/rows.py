"""Rows of network resources: what all have in common, and the SQL to write one."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import orjson

from kilonova import clock
from kilonova.ids import new_id
from kilonova.store import Reader, Row, Transaction

_MARK = "\x1f"


def standard(project_id: str, body: dict[str, Any], now: float) -> Row:
    return {
        "id": new_id(),
        "project_id": project_id,
        "description": body.get("description") or "",
        "tags": "",
        "revision_number": 1,
        "created_at": now,
        "updated_at": now,
    }


def shown(row: Row) -> dict[str, Any]:
    """The attributes that every resource shows."""
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
    return "".join(f"{_MARK}{tag}{_MARK}" for tag in sorted(set(tags)))


def unpack_tags(packed: str) -> list[str]:
    return packed[1:-1].split(_MARK + _MARK) if packed else []


def packed_tag(tag: str) -> str:
    return f"{_MARK}{tag}{_MARK}"


def dumps(value: Any) -> str:
    return orjson.dumps(value).decode()


async def get(reader: Reader, table: str, row_id: str) -> Row | None:
    return await reader.fetch_one(_select(table), row_id)


async def lock(tx: Transaction, table: str, row_id: str) -> Row | None:
    """The row, which nobody else changes until this transaction ends. Others may still refer to it."""
    return await tx.fetch_one(_select(table) + " FOR NO KEY UPDATE", row_id)


async def seal(tx: Transaction, table: str, row_id: str) -> None:
    """Before deleting a row: nobody can refer to it any more until this transaction ends.

    Taken first, so that a deletion and a creation below the row wait for each other in one order only.
    """
    await tx.fetch_one(f"SELECT id FROM {table} WHERE id = $1 FOR UPDATE", row_id)


async def insert(tx: Transaction, table: str, row: Row) -> None:
    await tx.execute(_insert(table, tuple(row)), *row.values())


async def update(tx: Transaction, table: str, row: Row, changes: Row, now: float) -> Row:
    """Write the changes and a new revision; the row as it is then."""
    changes = {**changes, "revision_number": row["revision_number"] + 1, "updated_at": now}
    await tx.execute(_update(table, tuple(changes)), row["id"], *changes.values())
    return {**row, **changes}


async def delete(tx: Transaction, table: str, row_id: str) -> bool:
    return bool(await tx.execute(f"DELETE FROM {table} WHERE id = $1", row_id))


@lru_cache(maxsize=64)
def _select(table: str) -> str:
    return f"SELECT * FROM {table} WHERE id = $1"


@lru_cache(maxsize=64)
def _insert(table: str, columns: tuple[str, ...]) -> str:
    values = ", ".join(f"${number}" for number in range(1, len(columns) + 1))
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({values})"


@lru_cache(maxsize=256)
def _update(table: str, columns: tuple[str, ...]) -> str:
    values = ", ".join(f"{column} = ${number}" for number, column in enumerate(columns, start=2))
    return f"UPDATE {table} SET {values} WHERE id = $1"
