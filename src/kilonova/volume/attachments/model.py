"""Attachments in the database: without a connector a volume is reserved, with one a host may reach it."""

from __future__ import annotations

from typing import Any

import orjson

from kilonova import clock
from kilonova.store import Reader, Row, Transaction
from kilonova.store.paging import Page, SortKey

RESERVED, ATTACHING, ATTACHED = "reserved", "attaching", "attached"
# Query keys, and the columns they speak of.
FILTERS = {"volume_id": "volume_id", "instance_id": "server_id", "status": "status", "attach_status": "status"}


async def get(reader: Reader, attachment_id: str) -> Row | None:
    return await reader.fetch_one("SELECT * FROM volume_attachments WHERE id = $1", attachment_id)


async def of_volume(reader: Reader, volume_id: str) -> list[Row]:
    sql = "SELECT * FROM volume_attachments WHERE volume_id = $1 ORDER BY created_at, id"
    return await reader.fetch(sql, volume_id)


async def page(
    reader: Reader, filters: dict[str, str], project_id: str | None, marker: Row | None, limit: int
) -> list[Row]:
    """Those that match, newest first; of all projects where none is named."""
    wanted = {FILTERS[key]: value for key, value in filters.items()}
    if project_id is not None:
        wanted["project_id"] = project_id
    conditions = [f"{column} = ${number}" for number, column in enumerate(wanted, 1)]
    newest = SortKey("created_at", descending=True, nullable=False)
    found = Page([newest], marker=marker, limit=limit, first_argument=len(wanted) + 1)
    where = " AND ".join([*conditions, found.where])
    sql = f"SELECT * FROM volume_attachments WHERE {where} {found.order}"
    return await reader.fetch(sql, *wanted.values(), *found.arguments)


async def create(tx: Transaction, row: Row) -> Row:
    marks = ", ".join(f"${number}" for number in range(1, len(row) + 1))
    made = await tx.fetch_one(
        f"INSERT INTO volume_attachments ({', '.join(row)}) VALUES ({marks}) RETURNING *", *row.values()
    )
    assert made is not None
    return made


async def connect(tx: Transaction, row: Row, connector: dict[str, Any], mode: str, connection: dict[str, Any]) -> Row:
    made = await tx.fetch_one(
        """
        UPDATE volume_attachments SET status = $2, mode = $3, host = $4, mountpoint = $5, connector = $6,
            connection = $7, updated_at = $8
        WHERE id = $1 RETURNING *
        """,
        row["id"],
        ATTACHING,
        mode,
        host_of(connector),
        connector.get("mountpoint") or row["mountpoint"],
        orjson.dumps(connector).decode(),
        orjson.dumps(connection).decode(),
        clock.now(),
    )
    assert made is not None
    return made


async def complete(tx: Transaction, attachment_id: str) -> None:
    await tx.execute(
        "UPDATE volume_attachments SET status = $2, attached_at = $3, updated_at = $3 WHERE id = $1",
        attachment_id,
        ATTACHED,
        clock.now(),
    )


async def delete(tx: Transaction, attachment_id: str) -> None:
    await tx.execute("DELETE FROM volume_attachments WHERE id = $1", attachment_id)


def host_of(connector: dict[str, Any]) -> str | None:
    host = connector.get("host")
    return host if isinstance(host, str) else None
