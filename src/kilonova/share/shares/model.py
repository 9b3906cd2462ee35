"""Shares in the database: functions that routes and operations share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from kilonova import clock
from kilonova.http import Context
from kilonova.http.errors import BadRequest, NotFound
from kilonova.store import Reader, Transaction
from kilonova.store.records import Record, encode_document

SHOW = "share:get"
CREATING, AVAILABLE, DELETING = "creating", "available", "deleting"
ERROR, ERROR_DELETING = "error", "error_deleting"
# Statuses in which a share can be deleted.
DELETABLE = (AVAILABLE, ERROR, ERROR_DELETING)
PROTOCOL = "NFS"


class Share(Record, frozen=True):
    """`size` is in GiB. `export_path` is None until the directory exists."""

    table: ClassVar[str] = "shares"

    id: str
    project_id: str
    user_id: str
    size: int
    status: str
    zone: str
    metadata: dict[str, str]
    created_at: float
    updated_at: float
    name: str | None = None
    description: str | None = None
    export_path: str | None = None


def not_found(share_id: str) -> NotFound:
    return NotFound(f"Share {share_id[:80]} could not be found.")


def target(share: Share) -> dict[str, object]:
    return {"project_id": share.project_id, "user_id": share.user_id}


async def get(reader: Reader, share_id: str, *, lock: bool = False) -> Share | None:
    """The share, without a check of visibility."""
    sql = "SELECT * FROM shares WHERE id = $1"
    return Share.decode_optional(await reader.fetch_one(f"{sql} FOR UPDATE" if lock else sql, share_id))


async def find(ctx: Context, reader: Reader, share_id: str, *, rule: str = SHOW, lock: bool = False) -> Share:
    """The share. Raises 404 if the caller may not see it, and 403 if the rule forbids the action."""
    share = await get(reader, share_id, lock=lock)
    if share is None or not ctx.may(SHOW, target(share)):
        raise not_found(share_id)
    ctx.authorize(rule, target(share))
    return share


def check_available(share: Share, action: str) -> None:
    if share.status != AVAILABLE:
        raise BadRequest(
            f"Invalid share: Share {share.id} must be in status {AVAILABLE} to {action}, but it is {share.status}."
        )


async def change(tx: Transaction, share_id: str, values: Mapping[str, str | int | None]) -> None:
    columns = {**values, "updated_at": clock.now()}
    changes = ", ".join(f"{column} = ${place}" for place, column in enumerate(columns, 2))
    await tx.execute(f"UPDATE shares SET {changes} WHERE id = $1", share_id, *columns.values())


async def set_metadata(tx: Transaction, share_id: str, metadata: Mapping[str, str]) -> None:
    await change(tx, share_id, {"metadata": encode_document(dict(metadata))})


async def set_status(tx: Transaction, share_id: str, status: str, *, before: str) -> None:
    """Set the status of a share that still has the one before."""
    await tx.execute(
        "UPDATE shares SET status = $2, updated_at = $3 WHERE id = $1 AND status = $4",
        share_id,
        status,
        clock.now(),
        before,
    )


async def set_available(tx: Transaction, share_id: str, export_path: str) -> bool:
    """Make a share available that is being created. Returns whether its status still was `creating`."""
    found = await tx.fetch_value(
        "UPDATE shares SET status = $2, export_path = $3, updated_at = $4 WHERE id = $1 AND status = $5 RETURNING 1",
        share_id,
        AVAILABLE,
        export_path,
        clock.now(),
        CREATING,
    )
    return found is not None


async def delete_row(tx: Transaction, share_id: str) -> None:
    """Delete the share with its access rules and the locks of both."""
    await tx.execute(
        "DELETE FROM share_locks WHERE resource_id = $1 OR resource_id IN"
        " (SELECT id FROM share_access_rules WHERE share_id = $1)",
        share_id,
    )
    await tx.execute("DELETE FROM shares WHERE id = $1", share_id)
