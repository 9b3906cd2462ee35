"""Volumes in the database: functions that routes and operations share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, TypeVar

from msgspec import Struct, structs

from kilonova import clock
from kilonova.http import Context
from kilonova.http.errors import BadRequest, NotFound
from kilonova.operations import Operation, begin
from kilonova.store import Reader, Transaction
from kilonova.store.insert import insert_row
from kilonova.store.records import Record
from kilonova.volume.attachments.model import ATTACHED, Attachment
from kilonova.volume.volumes import states

SHOW = "volume:get"
P = TypeVar("P")


class Volume(Record, frozen=True):
    table: ClassVar[str] = "volumes"

    id: str
    project_id: str
    user_id: str
    size: int
    status: str
    type_id: str
    zone: str
    bootable: bool
    multiattach: bool
    created_at: float
    updated_at: float
    name: str | None = None
    description: str | None = None
    previous_status: str | None = None
    readonly: bool | None = None
    snapshot_id: str | None = None
    source_volume_id: str | None = None
    image_metadata: dict[str, str] | None = None
    data_id: str | None = None
    progress: int | None = None


class ShownVolume(Struct, frozen=True):
    """A volume with the facts of other tables that views show. Reservations are no attachments here."""

    volume: Volume
    type_name: str | None
    metadata: dict[str, str]
    attachments: Sequence[Attachment] = ()


def not_found(volume_id: str) -> NotFound:
    return NotFound(f"Volume {volume_id} could not be found.")


def target(volume: Volume) -> dict[str, str]:
    return {"project_id": volume.project_id, "user_id": volume.user_id}


# Reading


async def get(reader: Reader, volume_id: str, *, lock: bool = False) -> Volume | None:
    """The volume, without a check of visibility."""
    sql = "SELECT * FROM volumes WHERE id = $1"
    return Volume.decode_optional(await reader.fetch_one(f"{sql} FOR UPDATE" if lock else sql, volume_id))


async def find(ctx: Context, reader: Reader, volume_id: str, *, rule: str, lock: bool = False) -> Volume:
    """The volume. Raises 404 if the caller may not see it, and 403 if the rule forbids the action.

    A rule may allow services an action on volumes that they may not see.
    """
    volume = await get(reader, volume_id, lock=lock)
    if volume is None or not (ctx.may(SHOW, target(volume)) or ctx.may(rule, target(volume))):
        raise not_found(volume_id)
    ctx.authorize(rule, target(volume))
    return volume


async def type_name(reader: Reader, volume: Volume) -> str:
    return str(await reader.fetch_value("SELECT name FROM volume_types WHERE id = $1", volume.type_id))


async def add_details(reader: Reader, volumes: Sequence[Volume]) -> list[ShownVolume]:
    ids = [volume.id for volume in volumes]
    rows = await reader.fetch(
        "SELECT id, name FROM volume_types WHERE id = ANY($1)", sorted({volume.type_id for volume in volumes})
    )
    names = {row["id"]: row["name"] for row in rows}
    metadata = await metadata_of(reader, ids)
    attachments = await _attachments_of(reader, ids)
    return [
        ShownVolume(volume, names.get(volume.type_id), metadata.get(volume.id, {}), attachments.get(volume.id, []))
        for volume in volumes
    ]


async def metadata_of(reader: Reader, ids: Sequence[str]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    sql = "SELECT volume_id, key, value FROM volume_metadata WHERE volume_id = ANY($1) ORDER BY volume_id, key"
    for row in await reader.fetch(sql, list(ids)):
        found.setdefault(row["volume_id"], {})[row["key"]] = row["value"]
    return found


async def _attachments_of(reader: Reader, ids: Sequence[str]) -> dict[str, list[Attachment]]:
    """The completed attachments. Reservations are not shown."""
    found: dict[str, list[Attachment]] = {}
    sql = (
        "SELECT * FROM volume_attachments WHERE volume_id = ANY($1) AND status = $2 ORDER BY volume_id, created_at, id"
    )
    for attachment in Attachment.decode_all(await reader.fetch(sql, list(ids), ATTACHED)):
        found.setdefault(attachment.volume_id, []).append(attachment)
    return found


# Writing


async def insert(tx: Transaction, volume: Volume, metadata: Mapping[str, str]) -> None:
    await insert_row(tx, Volume.table, volume.encode())
    await set_metadata(tx, volume.id, metadata)


async def begin_operation(
    ctx: Context, tx: Transaction, operation: type[Operation[P]], project_id: str, params: P
) -> None:
    """Begin the operation for the caller. The project is that of the volume or snapshot."""
    await begin(
        tx,
        operation,
        params=params,
        project_id=project_id,
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


async def begin_transition(tx: Transaction, volume: Volume, action: str) -> Volume:
    """Begin the transition of `states.TRANSITIONS`. Refuses (400) it if the volume's status does not allow it.

    Returns the volume in its new status.
    """
    transition = states.check(volume, action)
    assert transition.meanwhile is not None, f"{action} has no status meanwhile"
    await tx.execute(
        "UPDATE volumes SET status = $2, previous_status = $3, progress = 0, updated_at = $4 WHERE id = $1",
        volume.id,
        transition.meanwhile,
        volume.status,
        clock.now(),
    )
    return structs.replace(volume, previous_status=volume.status, status=transition.meanwhile)


async def end_transition(tx: Transaction, volume_id: str, action: str, *, ok: bool = True) -> None:
    """End what `begin_transition` began. The status stays if the volume is being deleted by force."""
    transition = states.TRANSITIONS[action]
    status = transition.then if ok else transition.failed
    assert status is not None, f"{action} has no final status"
    volume = await get(tx, volume_id, lock=True)
    if volume is not None and volume.status != states.DELETING:
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
