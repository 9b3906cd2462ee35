"""Attachments in the database. Without a connector a volume is reserved; with a connector it is connected to a host."""

from __future__ import annotations

from typing import Any

import orjson

from kilonova import clock
from kilonova.http import Context
from kilonova.http.errors import NotFound
from kilonova.store import Reader, Row, Transaction
from kilonova.store.insert import insert_row

SHOW = "volume:attachment_get"
RESERVED, ATTACHING, ATTACHED = "reserved", "attaching", "attached"


def not_found(attachment_id: str) -> NotFound:
    return NotFound(f"Volume attachment could not be found with filter: attachment_id = {attachment_id}.")


def target(row: Row) -> dict[str, Any]:
    return {"project_id": row["project_id"]}


async def get(reader: Reader, attachment_id: str) -> Row | None:
    return await reader.fetch_one("SELECT * FROM volume_attachments WHERE id = $1", attachment_id)


async def find(ctx: Context, reader: Reader, attachment_id: str, *, rule: str) -> Row:
    """The attachment. Raises 404 if the caller may not see it, and 403 if the rule forbids the action."""
    row = await get(reader, attachment_id)
    if row is None or not ctx.may(SHOW, target(row)):
        raise not_found(attachment_id)
    ctx.authorize(rule, target(row))
    return row


async def of_volume(reader: Reader, volume_id: str) -> list[Row]:
    sql = "SELECT * FROM volume_attachments WHERE volume_id = $1 ORDER BY created_at, id"
    return await reader.fetch(sql, volume_id)


async def create(tx: Transaction, row: Row) -> Row:
    return await insert_row(tx, "volume_attachments", row)


async def connect(tx: Transaction, row: Row, connector: dict[str, Any], mode: str, connection: dict[str, Any]) -> Row:
    connected = await tx.fetch_one(
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
    assert connected is not None
    return connected


async def disconnect(tx: Transaction, attachment_id: str) -> None:
    """Undo `connect`."""
    await tx.execute(
        "UPDATE volume_attachments SET status = $2, host = NULL, connector = NULL, connection = NULL, updated_at = $3"
        " WHERE id = $1 AND status = $4",
        attachment_id,
        RESERVED,
        clock.now(),
        ATTACHING,
    )


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
