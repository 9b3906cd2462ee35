"""Attachments in the database. Without a connector a volume is reserved; with a connector it is connected to a host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from kilonova import clock
from kilonova.http import Context
from kilonova.http.errors import NotFound
from kilonova.store import Reader, Transaction
from kilonova.store.insert import insert_row
from kilonova.store.records import Record, encode_document

SHOW = "volume:attachment_get"
RESERVED, ATTACHING, ATTACHED = "reserved", "attaching", "attached"


class Attachment(Record, frozen=True):
    """`connection` is the connection info on one level, as the API shows it."""

    table: ClassVar[str] = "volume_attachments"

    id: str
    volume_id: str
    project_id: str
    status: str
    mode: str
    created_at: float
    updated_at: float
    server_id: str | None = None
    host: str | None = None
    mountpoint: str | None = None
    connector: dict[str, object] | None = None
    connection: dict[str, object] | None = None
    attached_at: float | None = None


def not_found(attachment_id: str) -> NotFound:
    return NotFound(f"Volume attachment could not be found with filter: attachment_id = {attachment_id}.")


def target(attachment: Attachment) -> dict[str, str]:
    return {"project_id": attachment.project_id}


async def get(reader: Reader, attachment_id: str) -> Attachment | None:
    row = await reader.fetch_one("SELECT * FROM volume_attachments WHERE id = $1", attachment_id)
    return Attachment.decode_optional(row)


async def find(ctx: Context, reader: Reader, attachment_id: str, *, rule: str) -> Attachment:
    """The attachment. Raises 404 if the caller may not see it, and 403 if the rule forbids the action.

    A rule may allow services an action on attachments that they may not see.
    """
    attachment = await get(reader, attachment_id)
    if attachment is None or not (ctx.may(SHOW, target(attachment)) or ctx.may(rule, target(attachment))):
        raise not_found(attachment_id)
    ctx.authorize(rule, target(attachment))
    return attachment


async def of_volume(reader: Reader, volume_id: str) -> list[Attachment]:
    sql = "SELECT * FROM volume_attachments WHERE volume_id = $1 ORDER BY created_at, id"
    return Attachment.decode_all(await reader.fetch(sql, volume_id))


async def create(tx: Transaction, attachment: Attachment) -> None:
    await insert_row(tx, Attachment.table, attachment.encode())


async def connect(
    tx: Transaction, attachment: Attachment, connector: dict[str, object], mode: str, connection: dict[str, object]
) -> Attachment:
    mountpoint = connector.get("mountpoint") or attachment.mountpoint
    connected = await tx.fetch_one(
        """
        UPDATE volume_attachments SET status = $2, mode = $3, host = $4, mountpoint = $5, connector = $6,
            connection = $7, updated_at = $8
        WHERE id = $1 RETURNING *
        """,
        attachment.id,
        ATTACHING,
        mode,
        host_of(connector),
        mountpoint,
        encode_document(connector),
        encode_document(connection),
        clock.now(),
    )
    assert connected is not None
    return Attachment.decode(connected)


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


def host_of(connector: Mapping[str, object]) -> str | None:
    host = connector.get("host")
    return host if isinstance(host, str) else None
