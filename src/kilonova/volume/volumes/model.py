"""Volumes in the database: reading them for a caller, and the writes that routes and operations share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from kilonova import clock
from kilonova.http import Context
from kilonova.http.errors import BadRequest, NotFound
from kilonova.store import Reader, Row, Transaction
from kilonova.volume.volumes import states

SHOW = "volume:get"
READ = "volumes.*, (SELECT t.name FROM volume_types t WHERE t.id = volumes.type_id) AS type_name"
COLUMNS = (
    *("id", "project_id", "user_id", "name", "description", "size", "status", "type_id", "zone", "bootable"),
    *("multiattach", "readonly", "snapshot_id", "source_volume_id", "image_metadata", "created_at", "updated_at"),
)
_INSERT = "INSERT INTO volumes ({}) VALUES ({})".format(
    ", ".join(COLUMNS), ", ".join(f"${place}" for place in range(1, len(COLUMNS) + 1))
)


def missing(volume_id: str) -> NotFound:
    return NotFound(f"Volume {volume_id} could not be found.")


def target(row: Row) -> dict[str, Any]:
    return {"project_id": row["project_id"], "user_id": row["user_id"]}


# Reading


async def get(reader: Reader, volume_id: str, *, lock: bool = False) -> Row | None:
    """The volume, whoever asks."""
    sql = f"SELECT {READ} FROM volumes WHERE id = $1"
    return await reader.fetch_one(f"{sql} FOR UPDATE" if lock else sql, volume_id)


async def find(ctx: Context, reader: Reader, volume_id: str, *, rule: str, lock: bool = False) -> Row:
    """The volume, if the caller may see it (else 404) and the rule allows the act on it (else 403)."""
    row = await get(reader, volume_id, lock=lock)
    if row is None or not ctx.may(SHOW, target(row)):
        raise missing(volume_id)
    ctx.authorize(rule, target(row))
    return row


async def dress(reader: Reader, rows: Sequence[Row]) -> None:
    """Add to the rows what other tables say: metadata and attachments; documents become what they say."""
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
    """Those that are completed: who only reserved a volume does not have it yet."""
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
    await tx.execute(_INSERT, *(volume[name] for name in COLUMNS))
    await set_metadata(tx, volume["id"], metadata)


async def set_metadata(tx: Transaction, volume_id: str, metadata: Mapping[str, str]) -> None:
    """Add these, or change those that are there."""
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
    """Whatever it was, and nothing is under way any more."""
    await tx.execute(
        "UPDATE volumes SET status = $2, previous_status = NULL, progress = NULL, updated_at = $3 WHERE id = $1",
        volume_id,
        status,
        clock.now(),
    )


async def enter(tx: Transaction, volume: Row, action: str) -> None:
    """Begin what the table of states knows by this name; refused (400) where the volume's status forbids it."""
    transition = states.check(volume, action)
    assert transition.meanwhile is not None, f"{action} takes no time"
    await tx.execute(
        "UPDATE volumes SET status = $2, previous_status = $3, progress = 0, updated_at = $4 WHERE id = $1",
        volume["id"],
        transition.meanwhile,
        volume["status"],
        clock.now(),
    )
    volume["previous_status"], volume["status"] = volume["status"], transition.meanwhile


async def leave(tx: Transaction, volume_id: str, action: str, *, ok: bool = True) -> None:
    """The end of what `enter` began. A volume whose deletion was forced meanwhile stays what it is."""
    transition = states.TRANSITIONS[action]
    status = transition.then if ok else transition.failed
    assert status is not None, f"{action} ends in no status"
    volume = await get(tx, volume_id, lock=True)
    if volume is not None and volume["status"] != states.DELETING:
        await set_status(tx, volume_id, await settled(tx, volume_id) if status == states.SETTLED else status)


async def settled(reader: Reader, volume_id: str) -> str:
    """What the volume's attachments make of it while nothing else is under way."""
    rows = await reader.fetch("SELECT status FROM volume_attachments WHERE volume_id = $1", volume_id)
    return states.of_attachments([row["status"] for row in rows])


async def check_detached(reader: Reader, volume_id: str) -> None:
    """Refuse (400) what nobody may do to a volume that is somebody's, whatever its status."""
    if await reader.fetch_value("SELECT id FROM volume_attachments WHERE volume_id = $1", volume_id) is not None:
        raise BadRequest(f"Invalid volume: Volume {volume_id} is still attached, detach volume first.")


async def derive_status(tx: Transaction, volume_id: str) -> str:
    """The status after its attachments changed. An operation that is at work, or one that failed, has the last word."""
    status = await settled(tx, volume_id)
    changed = await tx.execute(
        "UPDATE volumes SET status = $2, previous_status = NULL, updated_at = $3 WHERE id = $1 AND status = ANY($4)",
        volume_id,
        status,
        clock.now(),
        list(states.ATTACHMENT_STATES),
    )
    return status if changed else str(await tx.fetch_value("SELECT status FROM volumes WHERE id = $1", volume_id))


async def delete_row(tx: Transaction, volume_id: str) -> None:
    """With its metadata, attachments and transfer."""
    await tx.execute("DELETE FROM volumes WHERE id = $1", volume_id)
