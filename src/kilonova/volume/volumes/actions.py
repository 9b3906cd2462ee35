"""Volume actions that change the content, the size, the type or the status."""

from __future__ import annotations

from kilonova.http import Context
from kilonova.http.errors import BadRequest
from kilonova.http.parameter_types import ANYTHING, is_true
from kilonova.store import Reader
from kilonova.volume.api import api, volume_action
from kilonova.volume.exports import attachments as exports
from kilonova.volume.operations.extend_volume import ExtendVolume, ExtendVolumeParams
from kilonova.volume.operations.replace_content import (
    ReimageVolume,
    ReimageVolumeParams,
    RevertVolume,
    RevertVolumeParams,
)
from kilonova.volume.quotas import model as quotas
from kilonova.volume.snapshots import model as snapshots
from kilonova.volume.snapshots.model import Snapshot
from kilonova.volume.types import model as types
from kilonova.volume.types import requirements
from kilonova.volume.types.lookup import not_found, not_found_on_conflict
from kilonova.volume.types.model import VolumeType
from kilonova.volume.volumes import action_schemas as schemas
from kilonova.volume.volumes import attach, delete, flags, images, model, states, upload
from kilonova.volume.volumes.model import Volume

# These modules declare their actions on import.
__all__ = ["attach", "flags", "upload"]

RULE = "volume:"
ADMIN_RULE = "volume_extension:volume_admin_actions:"
EXTENDS_ATTACHED = api.behaviour("volumes in use can be extended")


@volume_action("os-extend", checks=[RULE + "extend", RULE + "extend_attached_volume"], body=schemas.EXTEND, status=202)
async def extend(ctx: Context, volume_id: str) -> None:
    """Extend a volume. The row gets the new size at once, for the quota."""
    size = int(ctx.body["os-extend"]["new_size"])
    async with ctx.db.transaction() as tx:
        volume = await model.find(ctx, tx, volume_id, rule=RULE + "extend", lock=True)
        attached = volume.status == states.IN_USE and ctx.has_behaviour(EXTENDS_ATTACHED)
        if attached:
            ctx.authorize(RULE + "extend_attached_volume", model.target(volume))
        before = volume.size
        if size <= before:
            raise BadRequest(
                "Invalid input received: New size for extend must be greater than current size. "
                f"(current: {before}, extended: {size})."
            )
        await model.begin_transition(tx, volume, "os-extend in-use" if attached else "os-extend")
        await quotas.check(
            tx,
            volume.project_id,
            await model.type_name(tx, volume),
            config=ctx.services.config,
            gigabytes=size - before,
            size=size,
        )
        await tx.execute("UPDATE volumes SET size = $2 WHERE id = $1", volume_id, size)
        params = ExtendVolumeParams(volume_id, before, size)
        await model.begin_operation(ctx, tx, ExtendVolume, volume.project_id, params)


@volume_action(
    "os-extend_volume_completion",
    checks=[RULE + "extend_volume_completion"],
    body=schemas.EXTEND_COMPLETION,
    status=202,
)
async def complete_extension(ctx: Context, volume_id: str) -> None:
    """Refuse the completion of an extension: no volume waits for it."""
    await model.find(ctx, ctx.db, volume_id, rule=RULE + "extend_volume_completion")
    raise BadRequest(f"Invalid volume: Volume {volume_id} does not wait for the completion of an extension.")


@volume_action("os-reimage", checks=[RULE + "reimage", RULE + "reimage_reserved"], body=schemas.REIMAGE, status=202)
async def reimage(ctx: Context, volume_id: str) -> None:
    """Replace the content of a volume by an image."""
    body = ctx.body["os-reimage"]
    reserved = is_true(body.get("reimage_reserved"))
    rule = RULE + ("reimage_reserved" if reserved else "reimage")
    await model.find(ctx, ctx.db, volume_id, rule=rule)
    image = await images.get_usable(ctx, body["image_id"])
    async with ctx.db.transaction() as tx:
        volume = await model.find(ctx, tx, volume_id, rule=rule, lock=True)
        images.check_fits(image, volume.size)
        await _check_unconnected(tx, volume)
        await model.begin_transition(tx, volume, "os-reimage reserved" if reserved else "os-reimage")
        params = ReimageVolumeParams(volume_id, image.id, image.hash)
        await model.begin_operation(ctx, tx, ReimageVolume, volume.project_id, params)


@volume_action("revert", checks=[RULE + "revert_to_snapshot"], body=schemas.REVERT, status=202)
async def revert(ctx: Context, volume_id: str) -> None:
    """Revert a volume to its newest snapshot."""
    snapshot_id = ctx.body["revert"]["snapshot_id"]
    async with ctx.db.transaction() as tx:
        volume = await model.find(ctx, tx, volume_id, rule=RULE + "revert_to_snapshot", lock=True)
        snapshot = await snapshots.find(ctx, tx, snapshot_id, rule=snapshots.SHOW, lock=True)
        await _check_newest(tx, volume, snapshot)
        await _check_unconnected(tx, volume)
        await model.begin_transition(tx, volume, "revert")
        await snapshots.change(tx, snapshot_id, {"status": "restoring"})
        params = RevertVolumeParams(volume_id, snapshot_id)
        await model.begin_operation(ctx, tx, RevertVolume, volume.project_id, params)


@volume_action("os-retype", checks=[RULE + "retype"], body=schemas.RETYPE, status=202)
async def retype(ctx: Context, volume_id: str) -> None:
    """Change the type of a volume. All types have the same back end, so only the row changes."""
    reference = ctx.body["os-retype"]["new_type"]
    with not_found_on_conflict(reference):
        async with ctx.db.transaction() as tx:
            volume = await model.find(ctx, tx, volume_id, rule=RULE + "retype", lock=True)
            new_type = await types.find(tx, reference, ctx.token)
            if new_type is None:
                raise not_found(reference)
            _check_retype(volume, new_type)
            await quotas.check_retype(tx, volume.project_id, new_type.name, volume.size, config=ctx.services.config)
            await tx.execute(
                "UPDATE volumes SET type_id = $2, multiattach = $3, updated_at = $4 WHERE id = $1",
                volume_id,
                new_type.id,
                new_type.is_multiattach,
                ctx.now,
            )


@volume_action("os-migrate_volume", checks=[ADMIN_RULE + "migrate_volume"], body=schemas.MIGRATE, status=202)
async def migrate(ctx: Context, volume_id: str) -> None:
    """Refuse the migration of a volume: there is only one back end."""
    await model.find(ctx, ctx.db, volume_id, rule=ADMIN_RULE + "migrate_volume")
    raise BadRequest("Invalid input received: Volumes cannot be migrated: this service has one back end.")


@volume_action("os-force_delete", checks=[ADMIN_RULE + "force_delete"], body=ANYTHING, status=202)
async def force_delete(ctx: Context, volume_id: str) -> None:
    """Delete a volume in any status."""
    async with ctx.db.transaction() as tx:
        volume = await model.find(ctx, tx, volume_id, rule=ADMIN_RULE + "force_delete", lock=True)
        await delete.delete(ctx, tx, volume, force=True)


@volume_action("os-reset_status", checks=[ADMIN_RULE + "reset_status"], body=schemas.RESET_STATUS, status=202)
async def reset_status(ctx: Context, volume_id: str) -> None:
    """Set the status of a volume, or delete its attachments."""
    body = ctx.body["os-reset_status"]
    unused: list[str] = []
    if body.get("attach_status") == "detached":
        unused = await attach.check_unused(ctx, volume_id, ADMIN_RULE + "reset_status", None)
    async with ctx.db.transaction() as tx:
        volume = await model.find(ctx, tx, volume_id, rule=ADMIN_RULE + "reset_status", lock=True)
        if body.get("attach_status") == "detached":
            await tx.execute("DELETE FROM volume_attachments WHERE id = ANY($1)", unused)
        elif body.get("attach_status") and await model.status_at_rest(tx, volume_id) != states.IN_USE:
            raise BadRequest(f"Invalid volume: Volume {volume_id} has no attachment.")
        await model.set_status(tx, volume_id, body.get("status") or volume.status)
    await exports.try_sync(ctx, volume_id)


async def _check_unconnected(reader: Reader, volume: Volume) -> None:
    """Refuse (400) to replace the content of a volume that a host has open."""
    sql = "SELECT id FROM volume_attachments WHERE volume_id = $1 AND status <> 'reserved' LIMIT 1"
    if await reader.fetch_value(sql, volume.id) is not None:
        raise BadRequest(f"Invalid volume: Volume {volume.id} is connected to a host.")


async def _check_newest(reader: Reader, volume: Volume, snapshot: Snapshot) -> None:
    if snapshot.volume_id != volume.id:
        raise BadRequest(f"Invalid input received: Snapshot {snapshot.id} does not belong to volume {volume.id}.")
    if snapshot.status != snapshots.AVAILABLE:
        raise BadRequest(
            f"Invalid snapshot: Snapshot {snapshot.id} must be available, but its status is {snapshot.status}."
        )
    sql = "SELECT id FROM volume_snapshots WHERE volume_id = $1 ORDER BY created_at DESC, id DESC LIMIT 1"
    if await reader.fetch_value(sql, volume.id) != snapshot.id:
        raise BadRequest(
            f"Invalid input received: Specified snapshot {snapshot.id} is not the latest one of volume {volume.id}."
        )


def _check_retype(volume: Volume, new_type: VolumeType) -> None:
    states.check(volume, "os-retype")
    if new_type.id == volume.type_id:
        raise BadRequest(f"Invalid input received: New volume_type same as original: {new_type.name}.")
    if new_type.is_multiattach != volume.multiattach and volume.status != states.AVAILABLE:
        raise BadRequest(f"Invalid volume: Volume {volume.id} must be available to change its multi-attach setting.")
    if requirements.unmet_specs(new_type.extra_specs):
        raise BadRequest(f"Invalid input received: No back end meets the extra specs of type {new_type.name}.")
