"""Snapshots in the database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from msgspec import Struct

from kilonova import clock
from kilonova.http import Context
from kilonova.http.errors import BadRequest, NotFound
from kilonova.store import Reader, Transaction
from kilonova.store.records import Record

SHOW = "volume:get_snapshot"
CREATING, AVAILABLE, DELETING, ERROR, ERROR_DELETING = "creating", "available", "deleting", "error", "error_deleting"
DELETABLE = (AVAILABLE, ERROR, ERROR_DELETING)
# The statuses that can be reported for a snapshot in each status.
REPORTABLE = {CREATING: (CREATING, AVAILABLE, ERROR), DELETING: (DELETING, ERROR_DELETING)}


class Snapshot(Record, frozen=True):
    table: ClassVar[str] = "volume_snapshots"

    id: str
    project_id: str
    user_id: str
    volume_id: str
    size: int
    status: str
    bootable: bool
    created_at: float
    updated_at: float
    name: str | None = None
    description: str | None = None
    progress: int | None = None
    image_metadata: dict[str, str] | None = None
    data_id: str | None = None


class ShownSnapshot(Struct, frozen=True):
    snapshot: Snapshot
    metadata: dict[str, str]


def not_found(snapshot_id: str) -> NotFound:
    return NotFound(f"Snapshot {snapshot_id} could not be found.")


def target(snapshot: Snapshot) -> dict[str, str]:
    return {"project_id": snapshot.project_id, "user_id": snapshot.user_id}


async def get(reader: Reader, snapshot_id: str, *, lock: bool = False) -> Snapshot | None:
    sql = "SELECT * FROM volume_snapshots WHERE id = $1"
    return Snapshot.decode_optional(await reader.fetch_one(f"{sql} FOR UPDATE" if lock else sql, snapshot_id))


async def find(ctx: Context, reader: Reader, snapshot_id: str, *, rule: str, lock: bool = False) -> Snapshot:
    """The snapshot. Raises 404 if the caller may not see it, and 403 if the rule forbids the action."""
    snapshot = await get(reader, snapshot_id, lock=lock)
    if snapshot is None or not ctx.may(SHOW, target(snapshot)):
        raise not_found(snapshot_id)
    ctx.authorize(rule, target(snapshot))
    return snapshot


async def add_metadata(reader: Reader, snapshots: Sequence[Snapshot]) -> list[ShownSnapshot]:
    found = await _metadata(reader, [snapshot.id for snapshot in snapshots])
    return [ShownSnapshot(snapshot, found[snapshot.id]) for snapshot in snapshots]


async def metadata_of(reader: Reader, snapshot_id: str) -> dict[str, str]:
    return (await _metadata(reader, [snapshot_id]))[snapshot_id]


async def _metadata(reader: Reader, snapshot_ids: list[str]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {snapshot_id: {} for snapshot_id in snapshot_ids}
    sql = "SELECT * FROM volume_snapshot_metadata WHERE snapshot_id = ANY($1) ORDER BY key"
    for entry in await reader.fetch(sql, snapshot_ids):
        found[entry["snapshot_id"]][entry["key"]] = entry["value"]
    return found


async def change(tx: Transaction, snapshot_id: str, values: Mapping[str, str | int | None]) -> None:
    """Set columns and `updated_at`."""
    columns = {**values, "updated_at": clock.now()}
    changes = ", ".join(f"{column} = ${number}" for number, column in enumerate(columns, 2))
    await tx.execute(f"UPDATE volume_snapshots SET {changes} WHERE id = $1", snapshot_id, *columns.values())


async def set_all_statuses(tx: Transaction, volume_id: str, status: str) -> None:
    await tx.execute(
        "UPDATE volume_snapshots SET status = $2, updated_at = $3 WHERE volume_id = $1", volume_id, status, clock.now()
    )


async def set_metadata(tx: Transaction, snapshot_id: str, metadata: Mapping[str, str]) -> None:
    """Add or update entries."""
    await tx.execute_many(
        "INSERT INTO volume_snapshot_metadata (snapshot_id, key, value) VALUES ($1, $2, $3)"
        " ON CONFLICT (snapshot_id, key) DO UPDATE SET value = excluded.value",
        [(snapshot_id, key, value) for key, value in metadata.items()],
    )


async def replace_metadata(tx: Transaction, snapshot_id: str, metadata: Mapping[str, str]) -> None:
    await tx.execute("DELETE FROM volume_snapshot_metadata WHERE snapshot_id = $1", snapshot_id)
    await set_metadata(tx, snapshot_id, metadata)


async def delete_metadata(tx: Transaction, snapshot_id: str, key: str) -> bool:
    sql = "DELETE FROM volume_snapshot_metadata WHERE snapshot_id = $1 AND key = $2"
    return await tx.execute(sql, snapshot_id, key) > 0


async def check_deletable(tx: Transaction, snapshot: Snapshot) -> None:
    """Refuse (400) a snapshot that is busy, or is being copied to a volume."""
    if snapshot.status not in DELETABLE:
        raise BadRequest(
            f"Invalid snapshot: Snapshot status must be {' or '.join(DELETABLE)}, but the current status is:"
            f" {snapshot.status}."
        )
    copied = "SELECT id FROM volumes WHERE snapshot_id = $1 AND status = 'creating' LIMIT 1"
    reader = await tx.fetch_value(copied, snapshot.id)
    if reader is not None:
        raise BadRequest(f"Invalid snapshot: Snapshot {snapshot.id} is being copied to the volume {reader}.")
