"""Volume actions that set flags and image metadata."""

from __future__ import annotations

from kilonova.http import Context, Response
from kilonova.http.errors import NotFound
from kilonova.http.parameter_types import ANYTHING, is_true
from kilonova.store import Transaction
from kilonova.store.records import encode_document
from kilonova.volume.api import volume_action
from kilonova.volume.volumes import action_schemas as schemas
from kilonova.volume.volumes import model, states

RULE = "volume:"
IMAGE_RULE = "volume_extension:volume_image_metadata:"


@volume_action("os-set_bootable", checks=[RULE + "update"], body=schemas.BOOTABLE, status=200)
async def set_bootable(ctx: Context, volume_id: str) -> None:
    """Set whether a volume is bootable."""
    bootable = is_true(ctx.body["os-set_bootable"]["bootable"])
    async with ctx.db.transaction() as tx:
        await model.find(ctx, tx, volume_id, rule=RULE + "update", lock=True)
        await _set(ctx, tx, volume_id, "bootable", bootable)


@volume_action("os-update_readonly_flag", checks=[RULE + "update_readonly_flag"], body=schemas.READONLY, status=202)
async def update_readonly_flag(ctx: Context, volume_id: str) -> None:
    """Set whether a volume is read-only."""
    readonly = is_true(ctx.body["os-update_readonly_flag"]["readonly"])
    async with ctx.db.transaction() as tx:
        volume = await model.find(ctx, tx, volume_id, rule=RULE + "update_readonly_flag", lock=True)
        states.check(volume, "os-update_readonly_flag")
        await _set(ctx, tx, volume_id, "readonly", readonly)


@volume_action("os-show_image_metadata", checks=[IMAGE_RULE + "show"], body=ANYTHING, status=200)
async def show_image_metadata(ctx: Context, volume_id: str) -> Response:
    """Show the image metadata of a volume."""
    volume = await model.find(ctx, ctx.db, volume_id, rule=IMAGE_RULE + "show")
    return Response({"metadata": volume.image_metadata or {}})


@volume_action("os-set_image_metadata", checks=[IMAGE_RULE + "set"], body=schemas.SET_IMAGE_METADATA, status=200)
async def set_image_metadata(ctx: Context, volume_id: str) -> Response:
    """Create or update image metadata of a volume."""
    async with ctx.db.transaction() as tx:
        volume = await model.find(ctx, tx, volume_id, rule=IMAGE_RULE + "set", lock=True)
        metadata = {**(volume.image_metadata or {}), **ctx.body["os-set_image_metadata"]["metadata"]}
        await _store_image_metadata(ctx, tx, volume_id, metadata)
    return Response({"metadata": metadata})


@volume_action("os-unset_image_metadata", checks=[IMAGE_RULE + "remove"], body=schemas.UNSET_IMAGE_METADATA, status=200)
async def unset_image_metadata(ctx: Context, volume_id: str) -> None:
    """Delete an image metadata item of a volume."""
    key = ctx.body["os-unset_image_metadata"]["key"]
    async with ctx.db.transaction() as tx:
        volume = await model.find(ctx, tx, volume_id, rule=IMAGE_RULE + "remove", lock=True)
        metadata = volume.image_metadata or {}
        if key not in metadata:
            raise NotFound(f"Glance metadata for volume {volume_id} has no key {key}.")
        await _store_image_metadata(
            ctx, tx, volume_id, {name: value for name, value in metadata.items() if name != key}
        )


async def _store_image_metadata(ctx: Context, tx: Transaction, volume_id: str, metadata: dict[str, str]) -> None:
    await _set(ctx, tx, volume_id, "image_metadata", encode_document(metadata) if metadata else None)


async def _set(ctx: Context, tx: Transaction, volume_id: str, column: str, value: bool | str | None) -> None:
    await tx.execute(f"UPDATE volumes SET {column} = $2, updated_at = $3 WHERE id = $1", volume_id, value, ctx.now)
