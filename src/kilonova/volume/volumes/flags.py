"""Actions on volumes that say something of them: bootable, read-only, what is known of their image."""

from __future__ import annotations

from typing import Any

import orjson

from kilonova.http import Answer, Context
from kilonova.http.errors import NotFound
from kilonova.http.pieces import ANYTHING, is_true
from kilonova.store import Row, Transaction
from kilonova.volume.api import VOLUME_ACTION, api
from kilonova.volume.volumes import action_schemas as schemas
from kilonova.volume.volumes import model, states

RULE = "volume:"
IMAGE_RULE = "volume_extension:volume_image_metadata:"


@api.action("os-set_bootable", at=VOLUME_ACTION, checks=[RULE + "update"], body=schemas.BOOTABLE, status=200)
async def set_bootable(ctx: Context, volume_id: str) -> None:
    """Say whether servers can boot from a volume."""
    bootable = is_true(ctx.body["os-set_bootable"]["bootable"])
    async with ctx.db.transaction() as tx:
        await model.find(ctx, tx, volume_id, rule=RULE + "update", lock=True)
        await _set(ctx, tx, volume_id, "bootable", bootable)


@api.action(
    "os-update_readonly_flag",
    at=VOLUME_ACTION,
    checks=[RULE + "update_readonly_flag"],
    body=schemas.READONLY,
    status=202,
)
async def update_readonly_flag(ctx: Context, volume_id: str) -> None:
    """Make a volume read-only, or writable again."""
    readonly = is_true(ctx.body["os-update_readonly_flag"]["readonly"])
    async with ctx.db.transaction() as tx:
        volume = await model.find(ctx, tx, volume_id, rule=RULE + "update_readonly_flag", lock=True)
        states.check(volume, "os-update_readonly_flag")
        await _set(ctx, tx, volume_id, "readonly", readonly)


@api.action("os-show_image_metadata", at=VOLUME_ACTION, checks=[IMAGE_RULE + "show"], body=ANYTHING, status=200)
async def show_image_metadata(ctx: Context, volume_id: str) -> Answer:
    """Show what is known of the image that a volume was made of."""
    return Answer({"metadata": _known(await model.find(ctx, ctx.db, volume_id, rule=IMAGE_RULE + "show"))})


@api.action(
    "os-set_image_metadata",
    at=VOLUME_ACTION,
    checks=[IMAGE_RULE + "set"],
    body=schemas.SET_IMAGE_METADATA,
    status=200,
)
async def set_image_metadata(ctx: Context, volume_id: str) -> Answer:
    """Add to what is known of the image, or change it."""
    async with ctx.db.transaction() as tx:
        volume = await model.find(ctx, tx, volume_id, rule=IMAGE_RULE + "set", lock=True)
        known = {**_known(volume), **ctx.body["os-set_image_metadata"]["metadata"]}
        await _remember(ctx, tx, volume_id, known)
    return Answer({"metadata": known})


@api.action(
    "os-unset_image_metadata",
    at=VOLUME_ACTION,
    checks=[IMAGE_RULE + "remove"],
    body=schemas.UNSET_IMAGE_METADATA,
    status=200,
)
async def unset_image_metadata(ctx: Context, volume_id: str) -> None:
    """Forget something of the image."""
    key = ctx.body["os-unset_image_metadata"]["key"]
    async with ctx.db.transaction() as tx:
        volume = await model.find(ctx, tx, volume_id, rule=IMAGE_RULE + "remove", lock=True)
        known = _known(volume)
        if key not in known:
            raise NotFound(f"Glance metadata for volume {volume_id} has no key {key}.")
        await _remember(ctx, tx, volume_id, {name: value for name, value in known.items() if name != key})


def _known(volume: Row) -> dict[str, str]:
    known: dict[str, str] = orjson.loads(volume["image_metadata"]) if volume["image_metadata"] else {}
    return known


async def _remember(ctx: Context, tx: Transaction, volume_id: str, known: dict[str, str]) -> None:
    await _set(ctx, tx, volume_id, "image_metadata", orjson.dumps(known).decode() if known else None)


async def _set(ctx: Context, tx: Transaction, volume_id: str, column: str, value: Any) -> None:
    await tx.execute(f"UPDATE volumes SET {column} = $2, updated_at = $3 WHERE id = $1", volume_id, value, ctx.now)
