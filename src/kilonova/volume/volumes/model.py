"""Volumes in the database: functions that routes and operations share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from kilonova import clock
from kilonova.http import Context
from kilonova.http.errors import BadRequest, NotFound
from kilonova.operations import Operation, begin
from kilonova.store import Reader, Row, Transaction
from kilonova.store.insert import insert_row
from kilonova.volume.volumes import states

SHOW = "volume:get"
READ = "volumes.*, (SELECT t.name FROM volume_types t WHERE t.id = volumes.type_id) AS type_name"
COLUMNS = (
    *("id", "project_id", "user_id", "name", "description", "size", "status", "type_id", "zone", "bootable"),
    *("multiattach", "readonly", "snapshot_id", "source_volume_id", "image_metadata", "created_at", "updated_at"),
)


def not_found(volume_id: str) -> NotFound:
    return NotFound(f"Volume {volume_id} could not be found.")


def target(row: Row) -> dict[str, Any]:
    return {"project_id": row["project_id"], "user_id": row["user_id"]}


# Reading


async def get(reader: Reader, volume_id: str, *, lock: bool = False) -> Row | None:
    """The volume, without a check of visibility."""
    sql = f"SELECT {READ} FROM volumes WHERE id = $1"
    return await reader.fetch_one(f"{sql} FOR UPDATE" if lock else sql, volume_id)


async def find(ctx: Context, reader: Reader, volume_id: str, *, rule: str, lock: bool = False) -> Row:
    """The volume. Raises 404 if the caller may not see it, and 403 if the rule forbids the action."""
    row = await get(reader, volume_id, lock=lock)
    if row is None or not ctx.may(SHOW, target(row)):
        raise not_found(volume_id)
    ctx.authorize(rule, target(row))
    return row


async def add_details(reader: Reader, rows: Sequence[Row]) -> None:
    """Add the metadata and the attachments to the rows, and parse the image metadata."""
    ids = [row["id"] for row in rows]
    metadata = await metadata_of(reader, ids)
    attachments = await _attachments_of(reader, ids)
    for row in rows:
        row["metadata"] = metadata.get(row["id"], {})
        row["attachments"] = attachments.get(row["id"], [])
        row["image_metadata"] = orjson.loads(row["image_metadata"]) if row["image_metadata"] else {}


async def metadata_of(reader: Reader, ids: Sequence[str]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    sql = "SELECT volume_id, key, value FROM volume_metadata WHERE volume_id = ANY($1) ORDER BY volume_id, key"
    for row in await reader.fetch(sql, list(ids)):
        found.setdefault(row["volume_id"], {})[row["key"]] = row["value"]
    return found


async def _attachments_of(reader: Reader, ids: Sequence[str]) -> dict[str, list[Row]]:
    """The completed attachments. Reservations are not shown."""
    found: dict[str, list[Row]] = {}
    sql = (
        "SELECT * FROM volume_attachments WHERE volume_id = ANY($1) AND status = 'attached'"
        " ORDER BY volume_id, created_at, id"
    )
    for row in await reader.fetch(sql, list(ids)):
        found.setdefault(row["volume_id"], []).append(row)
    return found


# Writing


async def insert(tx: Transaction, volume: Row, metadata: Mapping[str, str]) -> None:
    await insert_row(tx, "volumes", {name: volume[name] for name in COLUMNS})
    await set_metadata(tx, volume["id"], metadata)


async def begin_operation(
    ctx: Context, tx: Transaction, operation: type[Operation], row: Row, params: dict[str, Any]
) -> None:
    """Begin the operation for the caller. `row` is its volume or snapshot."""
    await begin(
        tx,
        operation,
        params=params,
        project_id=row["project_id"],
        user_id=ctx.token.user_id,
        request_id=ctx.request_id,
    )


async def set_metadata(tx: Transaction, volume_id: str, metadata: Mapping[str, str]) -> None:
    """Add or update entries."""
    if metadata:
        await tx.execute_many(
            "INSERT INTO volume_metadata (volume_id, key, value) VALUES ($1, $2, $3)"
            " ON CONFLICT (volume_id, key) DO UPDATE SET value = excluded.value",
            [(volume_id, key, value) for key, value in metadata.items()],
        )


async def replace_metadata(tx: Transaction, volume_id: str, metadata: Mapping[str, str]) -> None:
    await tx.execute("DELETE FROM volume_metadata WHERE volume_id = $1", volume_id)
    await set_metadata(tx, volume_id, metadata)


async def set_status(tx: Transaction, volume_id: str, status: str) -> None:
    """Set the status and clear the progress of the last operation."""
    await tx.execute(
        "UPDATE volumes SET status = $2, previous_status = NULL, progress = NULL, updated_at = $3 WHERE id = $1",
        volume_id,
        status,
        clock.now(),
    )


async def begin_transition(tx: Transaction, volume: Row, action: str) -> None:
    """Begin the transition of `states.TRANSITIONS`. Refuses (400) it if the volume's status does not allow it."""
    transition = states.check(volume, action)
    assert transition.meanwhile is not None, f"{action} has no status meanwhile"
    await tx.execute(
        "UPDATE volumes SET status = $2, previous_status = $3, progress = 0, updated_at = $4 WHERE id = $1",
        volume["id"],
        transition.meanwhile,
        volume["status"],
        clock.now(),
    )
    volume["previous_status"], volume["status"] = volume["status"], transition.meanwhile


async def end_transition(tx: Transaction, volume_id: str, action: str, *, ok: bool = True) -> None:
    """End what `begin_transition` began. The status stays if the volume is being deleted by force."""
    transition = states.TRANSITIONS[action]
    status = transition.then if ok else transition.failed
    assert status is not None, f"{action} has no final status"
    volume = await get(tx, volume_id, lock=True)
    if volume is not None and volume["status"] != states.DELETING:
        await set_status(tx, volume_id, await status_at_rest(tx, volume_id) if status == states.AT_REST else status)


async def status_at_rest(reader: Reader, volume_id: str) -> str:
    """The status that follows from the volume's attachments."""
    rows = await reader.fetch("SELECT status FROM volume_attachments WHERE volume_id = $1", volume_id)
    return states.of_attachments([row["status"] for row in rows])


async def check_detached(reader: Reader, volume_id: str) -> None:
    """Refuse (400) a volume with attachments, regardless of its status."""
    if await reader.fetch_value("SELECT id FROM volume_attachments WHERE volume_id = $1", volume_id) is not None:
        raise BadRequest(f"Invalid volume: Volume {volume_id} is still attached, detach volume first.")


async def derive_status(tx: Transaction, volume_id: str) -> str:
    """Update the status from the attachments, unless it is the status of a running or failed operation."""
    status = await status_at_rest(tx, volume_id)
    changed = await tx.execute(
        "UPDATE volumes SET status = $2, previous_status = NULL, updated_at = $3 WHERE id = $1 AND status = ANY($4)",
        volume_id,
        status,
        clock.now(),
        list(states.ATTACHMENT_STATES),
    )
    return status if changed else str(await tx.fetch_value("SELECT status FROM volumes WHERE id = $1", volume_id))


async def delete_row(tx: Transaction, volume_id: str) -> None:
    """Delete the volume with its metadata, attachments and transfer."""
    await tx.execute("DELETE FROM volumes WHERE id = $1", volume_id)
