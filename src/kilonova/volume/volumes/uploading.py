"""os-volume_upload_image: the image is there when the answer comes; its content follows."""

from __future__ import annotations

import logging
from typing import Any

import orjson

from kilonova import clock
from kilonova.http import Answer, Context
from kilonova.http.client import Refused, Unreachable
from kilonova.http.pieces import is_true
from kilonova.ids import new_id
from kilonova.operations import begin
from kilonova.store import Row
from kilonova.volume.api import VOLUME_ACTION, api
from kilonova.volume.operations.content import image_properties
from kilonova.volume.operations.upload_volume import UploadVolume, make_image
from kilonova.volume.types import model as types
from kilonova.volume.volumes import action_schemas as schemas
from kilonova.volume.volumes import model

log = logging.getLogger(__name__)

RULE = "volume_extension:volume_actions:upload_image"
PUBLIC_RULE = "volume_extension:volume_actions:upload_public"
VISIBILITY = "images of volumes are protected and visible as asked for"


@api.action("os-volume_upload_image", at=VOLUME_ACTION, checks=[RULE, PUBLIC_RULE], body=schemas.UPLOAD, status=202)
async def upload_image(ctx: Context, volume_id: str) -> Answer:
    """Make an image of a volume."""
    asked = ctx.body["os-volume_upload_image"]
    async with ctx.db.transaction() as tx:
        volume = await model.find(ctx, tx, volume_id, rule=RULE, lock=True)
        if asked.get("visibility") == "public":
            ctx.authorize(PUBLIC_RULE, model.target(volume))
        await model.enter(
            tx, volume, "os-volume_upload_image force" if is_true(asked.get("force")) else "os-volume_upload_image"
        )
        image = _image(ctx, volume, asked)
        await begin(
            tx,
            UploadVolume,
            params={"volume_id": volume_id, "image": image},
            project_id=ctx.token.project_id,
            user_id=ctx.token.user_id,
            request_id=ctx.request_id,
        )
        kind = await types.lock(tx, volume["type_id"])
    await _make_now(ctx, image)
    return Answer({"os-volume_upload_image": _view(ctx, volume, image, kind)})


async def _make_now(ctx: Context, image: dict[str, Any]) -> None:
    """So that the caller can look at it at once. Should it not be possible now, the operation makes it, or says why."""
    try:
        await make_image(ctx.services.image, image, await ctx.services.identity.token())
    except (Refused, Unreachable) as error:
        log.warning("image %s is made later: %s", image["id"], error)


def _image(ctx: Context, volume: Row, asked: dict[str, Any]) -> dict[str, Any]:
    """What the image service is told: whose it is, what it is, and what was known of the image before."""
    known: dict[str, str] = orjson.loads(volume["image_metadata"]) if volume["image_metadata"] else {}
    return {
        **image_properties(known),
        "id": new_id(),
        "name": asked["image_name"],
        "owner": ctx.token.project_id or volume["project_id"],
        "disk_format": asked.get("disk_format") or "raw",
        "container_format": asked.get("container_format") or "bare",
        "visibility": asked.get("visibility") or "private",
        "protected": is_true(asked.get("protected")),
        "min_ram": _number(known.get("min_ram")),
        "min_disk": _number(known.get("min_disk")),
    }


def _number(text: str | None) -> int:
    """Users may have written anything there."""
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 10 else 0


def _view(ctx: Context, volume: Row, image: dict[str, Any], kind: Row | None) -> dict[str, Any]:
    shown = {
        "id": volume["id"],
        "updated_at": clock.iso_micro(volume["updated_at"]),
        "status": volume["status"],
        "display_description": volume["description"],
        "size": volume["size"],
        "volume_type": kind and _type(kind),
        "image_id": image["id"],
        "container_format": image["container_format"],
        "disk_format": image["disk_format"],
        "image_name": image["name"],
    }
    if ctx.behaves(VISIBILITY):
        shown |= {"visibility": image["visibility"], "protected": image["protected"]}
    return shown


def _type(kind: Row) -> dict[str, Any]:
    return {
        "id": kind["id"],
        "name": kind["name"],
        "description": kind["description"],
        "is_public": kind["is_public"],
        "extra_specs": kind["extra_specs"],
        "qos_specs_id": None,
        "created_at": clock.iso_micro(kind["created_at"]),
        "updated_at": clock.iso_micro(kind["updated_at"]),
        "deleted": False,
        "deleted_at": None,
    }
