"""Attachments in the database: without a connector a volume is reserved, with one a host may reach it."""

from __future__ import annotations

from typing import Any

import orjson

from kilonova import clock
from kilonova.http import Context
from kilonova.http.errors import NotFound
from kilonova.store import Reader, Row, Transaction

SHOW = "volume:attachment_get"
RESERVED, ATTACHING, ATTACHED = "reserved", "attaching", "attached"


def missing(attachment_id: str) -> NotFound:
    return NotFound(f"Volume attachment could not be found with filter: attachment_id = {attachment_id}.")


def target(row: Row) -> dict[str, Any]:
    return {"project_id": row["project_id"]}


async def get(reader: Reader, attachment_id: str) -> Row | None:
    return await reader.fetch_one("SELECT * FROM volume_attachments WHERE id = $1", attachment_id)


async def find(ctx: Context, reader: Reader, attachment_id: str, *, rule: str) -> Row:
    """The attachment, if the caller may see it (else 404) and the rule allows the act on it (else 403)."""
    row = await get(reader, attachment_id)
    if row is None or not ctx.may(SHOW, target(row)):
        raise missing(attachment_id)
    ctx.authorize(rule, target(row))
    return row


async def of_volume(reader: Reader, volume_id: str) -> list[Row]:
    sql = "SELECT * FROM volume_attachments WHERE volume_id = $1 ORDER BY created_at, id"
    return await reader.fetch(sql, volume_id)


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


async def disconnect(tx: Transaction, attachment_id: str) -> None:
    """Take the way back that `connect` gave."""
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
