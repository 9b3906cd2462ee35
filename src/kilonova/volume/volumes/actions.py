"""Actions on volumes that change what they hold, how large they are, or of which type; each one transaction."""

from __future__ import annotations

from typing import Any

from kilonova.http import Context
from kilonova.http.errors import BadRequest
from kilonova.http.pieces import ANYTHING, is_true
from kilonova.operations import Operation, begin
from kilonova.store import Reader, Row, Transaction
from kilonova.volume.api import VOLUME_ACTION, api
from kilonova.volume.exports import attaching as exports
from kilonova.volume.operations.extend_volume import ExtendVolume
from kilonova.volume.operations.reimage_volume import ReimageVolume
from kilonova.volume.operations.revert_volume import RevertVolume
from kilonova.volume.quotas import model as quotas
from kilonova.volume.snapshots import model as snapshots
from kilonova.volume.types import demands
from kilonova.volume.types import model as types
from kilonova.volume.types.lookup import kept, missing
from kilonova.volume.volumes import action_schemas as schemas
from kilonova.volume.volumes import attaching, deleting, flags, images, model, states, uploading

# They declare their actions as they are imported.
__all__ = ["attaching", "flags", "uploading"]

RULE = "volume:"
ADMIN_RULE = "volume_extension:volume_admin_actions:"
EXTENDS_ATTACHED = "volumes that servers have can be extended"


async def start(
    ctx: Context, tx: Transaction, volume: Row, operation: type[Operation], params: dict[str, Any] | None = None
) -> None:
    await begin(
        tx,
        operation,
        params={"volume_id": volume["id"], **(params or {})},
        project_id=volume["project_id"],
        user_id=ctx.token.user_id,
        request_id=ctx.request_id,
    )


@api.action(
    "os-extend",
    at=VOLUME_ACTION,
    checks=[RULE + "extend", RULE + "extend_attached_volume"],
    body=schemas.EXTEND,
    status=202,
)
async def extend(ctx: Context, volume_id: str) -> None:
    """Extend a volume. The row has the new size at once, so that quotas count it."""
    size = int(ctx.body["os-extend"]["new_size"])
    async with ctx.db.transaction() as tx:
        volume = await model.find(ctx, tx, volume_id, rule=RULE + "extend", lock=True)
        attached = volume["status"] == states.IN_USE and ctx.behaves(EXTENDS_ATTACHED)
        if attached:
            ctx.authorize(RULE + "extend_attached_volume", model.target(volume))
        before: int = volume["size"]
        if size <= before:
            raise BadRequest(
                "Invalid input received: New size for extend must be greater than current size. "
                f"(current: {before}, extended: {size})."
            )
        await model.enter(tx, volume, "os-extend in-use" if attached else "os-extend")
        await quotas.check(
            tx,
            volume["project_id"],
            volume["type_name"],
            config=ctx.services.config,
            gigabytes=size - before,
            size=size,
        )
        await tx.execute("UPDATE volumes SET size = $2 WHERE id = $1", volume_id, size)
        await start(ctx, tx, volume, ExtendVolume, {"before": before, "size": size})


@api.action(
    "os-extend_volume_completion",
    at=VOLUME_ACTION,
    checks=[RULE + "extend_volume_completion"],
    body=schemas.EXTEND_COMPLETION,
    status=202,
)
async def complete_extension(ctx: Context, volume_id: str) -> None:
    """Refused: files grow at once, so that no volume waits for its server."""
    await model.find(ctx, ctx.db, volume_id, rule=RULE + "extend_volume_completion")
    raise BadRequest(f"Invalid volume: Volume {volume_id} does not wait for the completion of an extension.")


@api.action(
    "os-reimage",
    at=VOLUME_ACTION,
    checks=[RULE + "reimage", RULE + "reimage_reserved"],
    body=schemas.REIMAGE,
    status=202,
)
async def reimage(ctx: Context, volume_id: str) -> None:
    """Replace all that a volume holds by an image."""
    asked = ctx.body["os-reimage"]
    reserved = is_true(asked.get("reimage_reserved"))
    rule = RULE + ("reimage_reserved" if reserved else "reimage")
    await model.find(ctx, ctx.db, volume_id, rule=rule)
    image = await images.usable(ctx, asked["image_id"])
    async with ctx.db.transaction() as tx:
        volume = await model.find(ctx, tx, volume_id, rule=rule, lock=True)
        images.check_fits(image, volume["size"])
        await _check_unconnected(tx, volume)
        await model.enter(tx, volume, "os-reimage reserved" if reserved else "os-reimage")
        await start(ctx, tx, volume, ReimageVolume, {"image_id": image["id"]})


@api.action("revert", at=VOLUME_ACTION, checks=[RULE + "revert_to_snapshot"], body=schemas.REVERT, status=202)
async def revert(ctx: Context, volume_id: str) -> None:
    """Put a volume back to its newest snapshot."""
    snapshot_id = ctx.body["revert"]["snapshot_id"]
    async with ctx.db.transaction() as tx:
        volume = await model.find(ctx, tx, volume_id, rule=RULE + "revert_to_snapshot", lock=True)
        snapshot = await snapshots.find(ctx, tx, snapshot_id, rule=snapshots.SHOW, lock=True)
        await _check_newest(tx, volume, snapshot)
        await _check_unconnected(tx, volume)
        await model.enter(tx, volume, "revert")
        await snapshots.change(tx, snapshot_id, {"status": "restoring"})
        await start(ctx, tx, volume, RevertVolume, {"snapshot_id": snapshot_id})


@api.action("os-retype", at=VOLUME_ACTION, checks=[RULE + "retype"], body=schemas.RETYPE, status=202)
async def retype(ctx: Context, volume_id: str) -> None:
    """Give a volume another type. All types have the same back end, so that it is done at once."""
    reference = ctx.body["os-retype"]["new_type"]
    with kept(reference):
        async with ctx.db.transaction() as tx:
            volume = await model.find(ctx, tx, volume_id, rule=RULE + "retype", lock=True)
            kind = await types.find(tx, reference, ctx.token)
            if kind is None:
                raise missing(reference)
            _check_retype(volume, kind)
            await quotas.check_retype(
                tx, volume["project_id"], kind["name"], volume["size"], config=ctx.services.config
            )
            await tx.execute(
                "UPDATE volumes SET type_id = $2, multiattach = $3, updated_at = $4 WHERE id = $1",
                volume_id,
                kind["id"],
                types.is_multiattach(kind),
                ctx.now,
            )


@api.action(
    "os-migrate_volume", at=VOLUME_ACTION, checks=[ADMIN_RULE + "migrate_volume"], body=schemas.MIGRATE, status=202
)
async def migrate(ctx: Context, volume_id: str) -> None:
    """Refused: there is one back end."""
    await model.find(ctx, ctx.db, volume_id, rule=ADMIN_RULE + "migrate_volume")
    raise BadRequest("Invalid input received: Volumes cannot be migrated: this service has one back end.")


@api.action("os-force_delete", at=VOLUME_ACTION, checks=[ADMIN_RULE + "force_delete"], body=ANYTHING, status=202)
async def force_delete(ctx: Context, volume_id: str) -> None:
    """Delete a volume whatever its status."""
    async with ctx.db.transaction() as tx:
        volume = await model.find(ctx, tx, volume_id, rule=ADMIN_RULE + "force_delete", lock=True)
        await deleting.delete(ctx, tx, volume, force=True)


@api.action(
    "os-reset_status", at=VOLUME_ACTION, checks=[ADMIN_RULE + "reset_status"], body=schemas.RESET_STATUS, status=202
)
async def reset_status(ctx: Context, volume_id: str) -> None:
    """Set the status of a volume, whatever it is; or say that no server has it."""
    asked = ctx.body["os-reset_status"]
    unused: list[str] = []
    if asked.get("attach_status") == "detached":
        unused = await attaching.check_unused(ctx, volume_id, ADMIN_RULE + "reset_status", None)
    async with ctx.db.transaction() as tx:
        volume = await model.find(ctx, tx, volume_id, rule=ADMIN_RULE + "reset_status", lock=True)
        if asked.get("attach_status") == "detached":
            await tx.execute("DELETE FROM volume_attachments WHERE id = ANY($1)", unused)
        elif asked.get("attach_status") and await model.settled(tx, volume_id) != states.IN_USE:
            raise BadRequest(f"Invalid volume: Volume {volume_id} has no attachment, so that no server has it.")
        await model.set_status(tx, volume_id, asked.get("status") or volume["status"])
    await exports.settle(ctx, volume_id)


async def _check_unconnected(reader: Reader, volume: Row) -> None:
    """What a host has open must not be replaced under it."""
    sql = "SELECT id FROM volume_attachments WHERE volume_id = $1 AND status <> 'reserved' LIMIT 1"
    if await reader.fetch_value(sql, volume["id"]) is not None:
        raise BadRequest(f"Invalid volume: Volume {volume['id']} is connected to a host.")


async def _check_newest(reader: Reader, volume: Row, snapshot: Row) -> None:
    if snapshot["volume_id"] != volume["id"]:
        raise BadRequest(f"Invalid input received: Snapshot {snapshot['id']} is not of volume {volume['id']}.")
    if snapshot["status"] != snapshots.AVAILABLE:
        raise BadRequest(
            f"Invalid snapshot: Snapshot {snapshot['id']} must be available, but its status is {snapshot['status']}."
        )
    sql = "SELECT id FROM volume_snapshots WHERE volume_id = $1 ORDER BY created_at DESC, id DESC LIMIT 1"
    if await reader.fetch_value(sql, volume["id"]) != snapshot["id"]:
        raise BadRequest(
            f"Invalid input received: Specified snapshot {snapshot['id']} is not the latest one of volume"
            f" {volume['id']}."
        )


def _check_retype(volume: Row, kind: Row) -> None:
    states.check(volume, "os-retype")
    if kind["id"] == volume["type_id"]:
        raise BadRequest(f"Invalid input received: New volume_type same as original: {kind['name']}.")
    if types.is_multiattach(kind) != volume["multiattach"] and volume["status"] != states.AVAILABLE:
        raise BadRequest(
            f"Invalid volume: Volume {volume['id']} must be available to let several servers have it, or only one."
        )
    if demands.unmet(kind["extra_specs"]):
        raise BadRequest(f"Invalid input received: No back end is of the kind that type {kind['name']} asks for.")
