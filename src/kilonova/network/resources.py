"""Records of network resources: the standard attributes that all have, and the SQL that writes a record."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import lru_cache
from typing import TypeVar

from msgspec import structs

from kilonova import clock, store
from kilonova.http import Context
from kilonova.ids import new_id
from kilonova.network.errors import conflict
from kilonova.store import Reader, Row, Transaction
from kilonova.store.records import Record, document_columns, encode_document

# Notified after changes that may alter the network plans of hosts.
CHANGES_CHANNEL = "networks"
# Stands before and after each tag in the column `tags`.
_TAG_MARK = "\x1f"


class Resource(Record, frozen=True):
    """The standard attributes. `tags` is one text, see `pack_tags`."""

    id: str
    project_id: str
    description: str
    tags: str
    revision_number: int
    created_at: float
    updated_at: float


R = TypeVar("R", bound=Resource)


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


def standard_columns(project_id: str, body: Mapping[str, object], now: float) -> Row:
    """The standard attributes of a new resource."""
    return {
        "id": new_id(),
        "project_id": project_id,
        "description": body.get("description") or "",
        "tags": "",
        "revision_number": 1,
        "created_at": now,
        "updated_at": now,
    }


def standard_view(resource: Resource) -> dict[str, object]:
    """The standard attributes as the API shows them."""
    return {
        "project_id": resource.project_id,
        "tenant_id": resource.project_id,
        "description": resource.description,
        "tags": unpack_tags(resource.tags),
        "revision_number": resource.revision_number,
        "created_at": clock.iso(resource.created_at),
        "updated_at": clock.iso(resource.updated_at),
    }


def pack_tags(tags: list[str]) -> str:
    return "".join(f"{_TAG_MARK}{tag}{_TAG_MARK}" for tag in sorted(set(tags)))


def unpack_tags(packed: str) -> list[str]:
    return packed[1:-1].split(_TAG_MARK + _TAG_MARK) if packed else []


async def find(reader: Reader, kind: type[R], resource_id: str) -> R | None:
    return kind.decode_optional(await reader.fetch_one(f"SELECT * FROM {kind.table} WHERE id = $1", resource_id))


async def lock(tx: Transaction, kind: type[R], resource_id: str) -> R | None:
    """Lock the row against changes until the transaction ends. Other transactions may still refer to it."""
    sql = f"SELECT * FROM {kind.table} WHERE id = $1 FOR NO KEY UPDATE"
    return kind.decode_optional(await tx.fetch_one(sql, resource_id))


async def lock_for_delete(tx: Transaction, kind: type[Resource], resource_id: str) -> None:
    """Lock a row that will be deleted: until the transaction ends, no other row can be made that refers to it.

    Lock before anything else, so that a deletion and a creation of a dependent row cannot deadlock.
    """
    await tx.fetch_one(f"SELECT id FROM {kind.table} WHERE id = $1 FOR UPDATE", resource_id)


async def insert(tx: Transaction, record: Record) -> None:
    row = record.encode()
    await tx.execute(_insert(record.table, tuple(row)), *row.values())


async def update(tx: Transaction, resource: R, changes: Mapping[str, object], now: float) -> R:
    """Write the changes with a new revision number. Returns the changed resource."""
    changes = {**changes, "revision_number": resource.revision_number + 1, "updated_at": now}
    documents = document_columns(type(resource))
    values = [encode_document(value) if name in documents else value for name, value in changes.items()]
    await tx.execute(_update(resource.table, tuple(changes)), resource.id, *values)
    return structs.replace(resource, **changes)


async def delete(tx: Transaction, kind: type[Resource], resource_id: str) -> bool:
    return bool(await tx.execute(f"DELETE FROM {kind.table} WHERE id = $1", resource_id))


@lru_cache(maxsize=64)
def _insert(table: str, columns: tuple[str, ...]) -> str:
    values = ", ".join(f"${number}" for number in range(1, len(columns) + 1))
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({values})"


@lru_cache(maxsize=256)
def _update(table: str, columns: tuple[str, ...]) -> str:
    values = ", ".join(f"{column} = ${number}" for number, column in enumerate(columns, start=2))
    return f"UPDATE {table} SET {values} WHERE id = $1"
