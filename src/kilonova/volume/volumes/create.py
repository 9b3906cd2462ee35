"""POST /volumes: checks the request, then creates the row and the operation in one transaction."""

from __future__ import annotations

from dataclasses import dataclass

import orjson

from kilonova.http import Context
from kilonova.http.errors import BadRequest, Forbidden, NotFound
from kilonova.http.parameter_types import is_true
from kilonova.ids import new_id
from kilonova.image.client import Image
from kilonova.store import Reader, Transaction
from kilonova.volume.api import api
from kilonova.volume.operations.replace_content import CreateVolume, CreateVolumeParams
from kilonova.volume.quotas import model as quotas
from kilonova.volume.services import model as services
from kilonova.volume.snapshots import model as snapshots
from kilonova.volume.types import model as types
from kilonova.volume.types.lookup import not_found_on_conflict
from kilonova.volume.types.model import VolumeType
from kilonova.volume.volumes import images, model, states
from kilonova.volume.volumes.model import ShownVolume, Volume

RULE = "volume:"
OF_SNAPSHOT_IMAGES = api.behaviour("volumes from images of volume-backed servers")
# Image property with the type of volumes created from the image.
_TYPE_PROPERTY = "cinder_img_volume_type"
_NO_MULTIATTACH = (
    "multiattach parameter has been removed. The default behavior is to use multiattach enabled volume types. Contact"
    " your administrator to create a multiattach enabled volume type and use it to create multiattach volumes."
)


@dataclass(frozen=True, kw_only=True)
class Source:
    """What a volume is created from; empty for a blank volume."""

    kind: str = ""
    """`image`, `snapshot` or `volume`."""
    id: str = ""
    size: int = 0
    """The size of the source in GiB. The volume may be larger."""
    image_hash: str = ""
    type_id: str | None = None
    type_reference: str | None = None

    @property
    def parameter(self) -> dict[str, str] | None:
        return {self.kind: self.id} if self.kind else None


async def create(ctx: Context) -> ShownVolume:
    body = ctx.body["volume"]
    if ctx.token.project_id is None:
        raise Forbidden("The token must be scoped to a project to create a volume.")
    _check_supported(body)
    zone = await _zone(ctx, body.get("availability_zone"))
    image = await _image(ctx, body)
    with not_found_on_conflict(body.get("volume_type") or types.DEFAULT):
        async with ctx.db.transaction() as tx:
            return await _insert(ctx, tx, zone, image)


async def _insert(ctx: Context, tx: Transaction, zone: str, image: Image | None) -> ShownVolume:
    body = ctx.body["volume"]
    await services.check_enabled(tx)
    source = await _source(ctx, tx, body, image)
    size = _size(body.get("size"), source)
    volume_type = await _type(ctx, tx, body.get("volume_type"), source)
    volume = _new(ctx, body, source, volume_type, size, zone)
    await quotas.check(
        tx, volume.project_id, volume_type.name, config=ctx.services.config, volumes=1, gigabytes=size, size=size
    )
    metadata = body.get("metadata") or {}
    await model.insert(tx, volume, metadata)
    params = CreateVolumeParams(volume.id, source.parameter, source.image_hash)
    await model.begin_operation(ctx, tx, CreateVolume, volume.project_id, params)
    return ShownVolume(volume, volume_type.name, metadata)


def _check_supported(body: dict[str, str]) -> None:
    if is_true(body.get("multiattach")):
        raise BadRequest(_NO_MULTIATTACH)
    # Backups and groups are not supported, so none can be found.
    for key, noun in (("backup_id", "Backup"), ("group_id", "Group"), ("consistencygroup_id", "Group")):
        if body.get(key):
            raise NotFound(f"{noun} {body[key]} could not be found.")
    if sum(bool(body.get(key)) for key in ("snapshot_id", "source_volid", "imageRef", "image_id")) > 1:
        raise BadRequest("A volume can be created from only one of imageRef, snapshot_id and source_volid.")


async def _zone(ctx: Context, requested: str | None) -> str:
    if not requested:
        return ctx.services.config.scheduler.default_zone
    if requested not in await ctx.services.compute_status.availability_zones():
        raise BadRequest(f"Invalid input received: Availability zone '{requested}' is invalid.")
    return requested


# Source


async def _image(ctx: Context, body: dict[str, str]) -> Image | None:
    reference = body.get("imageRef") or body.get("image_id")
    if not reference:
        return None
    ctx.authorize(RULE + "create_from_image")
    return await images.get_usable(ctx, reference.rstrip("/").rsplit("/", 1)[-1])


async def _source(ctx: Context, tx: Transaction, body: dict[str, str], image: Image | None) -> Source:
    if body.get("source_volid"):
        return await _volume(ctx, tx, body["source_volid"])
    if body.get("snapshot_id"):
        return await _snapshot(ctx, tx, body["snapshot_id"])
    if image is None:
        return Source()
    snapshot_id = _root_snapshot(image) if ctx.has_behaviour(OF_SNAPSHOT_IMAGES) else None
    if snapshot_id is not None:
        return await _snapshot(ctx, tx, snapshot_id)
    size = body.get("size")
    if size is not None:
        images.check_fits(image, int(size))
    return Source(kind="image", id=image.id, image_hash=image.hash, type_reference=image.properties.get(_TYPE_PROPERTY))


async def _volume(ctx: Context, tx: Transaction, volume_id: str) -> Source:
    """Lock the source volume, so that it is not deleted before the copy begins."""
    volume = await model.find(ctx, tx, volume_id, rule=model.SHOW, lock=True)
    states.check(volume, "clone")
    return Source(kind="volume", id=volume_id, size=volume.size, type_id=volume.type_id)


async def _snapshot(ctx: Context, tx: Transaction, snapshot_id: str) -> Source:
    """Lock the snapshot after its volume, as everywhere."""
    found = await snapshots.find(ctx, tx, snapshot_id, rule=snapshots.SHOW)
    volume = await model.get(tx, found.volume_id, lock=True)
    snapshot = await snapshots.find(ctx, tx, snapshot_id, rule=snapshots.SHOW, lock=True)
    assert volume is not None, "a volume is not deleted before its snapshots"
    if snapshot.status != snapshots.AVAILABLE:
        raise BadRequest(
            "Invalid snapshot: Originating snapshot status must be one of 'available' values, but it is"
            f" {snapshot.status}."
        )
    return Source(kind="snapshot", id=snapshot_id, size=snapshot.size, type_id=volume.type_id)


def _root_snapshot(image: Image) -> str | None:
    """The root snapshot in the image of a volume-backed server. The image itself is empty."""
    if image.size:
        return None
    try:
        devices = orjson.loads(image.properties.get("block_device_mapping") or "[]")
        roots = [device for device in devices if device.get("boot_index") == 0 and device.get("snapshot_id")]
    except (ValueError, AttributeError, TypeError):
        return None
    return str(roots[0]["snapshot_id"]) if roots else None


# Record


def _size(requested: int | str | None, source: Source) -> int:
    if requested is None:
        if not source.size:
            raise BadRequest("Invalid input received: Volume size 'None' must be an integer and greater than 0")
        return source.size
    size = int(requested)
    if size < source.size:
        raise BadRequest(
            f"Invalid input received: Volume size '{size}'GB cannot be smaller than original {source.kind} size"
            f" {source.size}GB. They must be >= original {source.kind} size."
        )
    return size


async def _type(ctx: Context, reader: Reader, requested: str | None, source: Source) -> VolumeType:
    """The requested type, else that of the source, else the default of the project."""
    reference = requested or source.type_reference
    if reference:
        found = await types.find(reader, reference, ctx.token)
        if found is None:
            raise NotFound(f"Volume type with name {reference} could not be found.")
    elif source.type_id:
        found = await types.get_any(reader, source.type_id)
        assert found is not None
    else:
        found = await types.get_default(reader, str(ctx.token.project_id))
    if found.is_multiattach:
        ctx.authorize(RULE + "multiattach")
    return found


def _new(ctx: Context, body: dict[str, str], source: Source, volume_type: VolumeType, size: int, zone: str) -> Volume:
    return Volume(
        id=new_id(),
        project_id=str(ctx.token.project_id),
        user_id=ctx.token.user_id,
        name=body.get("name", body.get("display_name")),
        description=body.get("description", body.get("display_description")),
        size=size,
        status=states.CREATING,
        type_id=volume_type.id,
        zone=zone,
        # The operation sets this and the image metadata from the content.
        bootable=False,
        multiattach=volume_type.is_multiattach,
        snapshot_id=source.id if source.kind == "snapshot" else None,
        source_volume_id=source.id if source.kind == "volume" else None,
        created_at=ctx.now,
        updated_at=ctx.now,
    )
