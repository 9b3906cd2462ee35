"""os-volume_upload_image: creates the image; an operation uploads the content."""

from __future__ import annotations

import logging

from kilonova import clock
from kilonova.http import Context, Response
from kilonova.http.client import Refused, Unreachable
from kilonova.http.parameter_types import is_true
from kilonova.ids import new_id
from kilonova.operations import begin
from kilonova.volume.api import api, volume_action
from kilonova.volume.operations.content import image_properties
from kilonova.volume.operations.upload_volume import UploadVolume, UploadVolumeParams, create_image
from kilonova.volume.types import model as types
from kilonova.volume.types.model import VolumeType
from kilonova.volume.volumes import action_schemas as schemas
from kilonova.volume.volumes import model
from kilonova.volume.volumes.model import Volume

log = logging.getLogger(__name__)

RULE = "volume_extension:volume_actions:upload_image"
PUBLIC_RULE = "volume_extension:volume_actions:upload_public"
VISIBILITY = api.behaviour("uploaded images have a visibility and protection")


@volume_action("os-volume_upload_image", checks=[RULE, PUBLIC_RULE], body=schemas.UPLOAD, status=202)
async def upload_image(ctx: Context, volume_id: str) -> Response:
    """Upload a volume to the image service."""
    body = ctx.body["os-volume_upload_image"]
    async with ctx.db.transaction() as tx:
        volume = await model.find(ctx, tx, volume_id, rule=RULE, lock=True)
        if body.get("visibility") == "public":
            ctx.authorize(PUBLIC_RULE, model.target(volume))
        volume = await model.begin_transition(
            tx, volume, "os-volume_upload_image force" if is_true(body.get("force")) else "os-volume_upload_image"
        )
        image = _image(ctx, volume, body)
        await begin(
            tx,
            UploadVolume,
            params=UploadVolumeParams(volume_id, image),
            project_id=ctx.token.project_id,
            user_id=ctx.token.user_id,
            request_id=ctx.request_id,
        )
        volume_type = await types.lock(tx, volume.type_id)
    await _create_image(ctx, image)
    return Response({"os-volume_upload_image": _view(ctx, volume, image, volume_type)})


async def _create_image(ctx: Context, image: dict[str, object]) -> None:
    """Create the image at once, so that the caller can show it. If that fails, the operation tries again."""
    try:
        await create_image(ctx.services.image, image, await ctx.services.identity.token())
    except (Refused, Unreachable) as error:
        log.warning("image %s is created later: %s", image["id"], error)


def _image(ctx: Context, volume: Volume, body: dict[str, str]) -> dict[str, object]:
    """The body for the image service, with the properties of the image that the volume was created from."""
    metadata = volume.image_metadata or {}
    return {
        **image_properties(metadata),
        "id": new_id(),
        "name": body["image_name"],
        "owner": ctx.token.project_id or volume.project_id,
        "disk_format": body.get("disk_format") or "raw",
        "container_format": body.get("container_format") or "bare",
        "visibility": body.get("visibility") or "private",
        "protected": is_true(body.get("protected")),
        "min_ram": _number(metadata.get("min_ram")),
        "min_disk": _number(metadata.get("min_disk")),
    }


def _number(text: str | None) -> int:
    """Users may have set the image metadata to any text."""
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 10 else 0


def _view(ctx: Context, volume: Volume, image: dict[str, object], volume_type: VolumeType | None) -> dict[str, object]:
    shown = {
        "id": volume.id,
        "updated_at": clock.iso_micro(volume.updated_at),
        "status": volume.status,
        "display_description": volume.description,
        "size": volume.size,
        "volume_type": volume_type and _type(volume_type),
        "image_id": image["id"],
        "container_format": image["container_format"],
        "disk_format": image["disk_format"],
        "image_name": image["name"],
    }
    if ctx.has_behaviour(VISIBILITY):
        shown |= {"visibility": image["visibility"], "protected": image["protected"]}
    return shown


def _type(volume_type: VolumeType) -> dict[str, object]:
    return {
        "id": volume_type.id,
        "name": volume_type.name,
        "description": volume_type.description,
        "is_public": volume_type.is_public,
        "extra_specs": volume_type.extra_specs,
        "qos_specs_id": None,
        "created_at": clock.iso_micro(volume_type.created_at),
        "updated_at": clock.iso_micro(volume_type.updated_at),
        "deleted": False,
        "deleted_at": None,
    }
