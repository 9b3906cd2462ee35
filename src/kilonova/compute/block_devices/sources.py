"""Sources of a new server's volumes: looks up volumes, snapshots and images with the caller's token and checks them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from kilonova.compute.api import api
from kilonova.compute.block_devices.requested_device import RequestedDevice, invalid_mapping
from kilonova.compute.servers import image_checks
from kilonova.compute.volume_checks import check_not_encrypted
from kilonova.compute.volume_messages import failure_reason
from kilonova.http import Context
from kilonova.http.errors import BadRequest
from kilonova.identity.client import Auth
from kilonova.image.client import Image
from kilonova.volume.client import Volume, VolumeSnapshot

MULTIATTACH = api.behaviour("volumes that several servers may have can be attached")
Source = Volume | VolumeSnapshot | Image


async def look_up(ctx: Context, devices: list[RequestedDevice], *, has_image: bool) -> dict[str, Source]:
    """The sources of the devices by id. Completes the devices with sizes and `multiattach`.

    `has_image`: the request names an image, which describes the root volume. Otherwise the volume must be bootable.
    """
    volumes = [device for device in devices if device.is_volume]
    if not volumes:
        return {}
    auth = Auth(ctx.auth_token, ctx.token.project_id)
    await _check_types(ctx, volumes, auth)
    known: dict[str, Source] = {}
    for device in volumes:
        if device.source_id is not None:
            source = await _LOOKUPS[device.source_type](ctx, device, device.source_id, auth)
            if device.is_root and not has_image and isinstance(source, Volume) and source.bootable != "true":
                raise BadRequest(f"Block Device {source.id} is not bootable.")
            known[device.source_id] = source
    return known


async def get_root_properties(ctx: Context, root: RequestedDevice, known: dict[str, Source]) -> dict[str, str]:
    """The properties of the image that the root volume is, or will be, created from."""
    source: Source | None = known.get(root.source_id or "")
    if isinstance(source, Image):
        return image_checks.properties(source)
    if isinstance(source, VolumeSnapshot):
        source = await ctx.services.volume.show(source.volume_id, Auth(ctx.auth_token, ctx.token.project_id))
    metadata = source.image_metadata if source is not None else {}
    check_size(root, int(metadata.get("min_disk") or 0))
    return image_checks.volume_properties(metadata)


def check_size(device: RequestedDevice, min_disk: int) -> None:
    size = device.volume_size or 0
    if min_disk > size:
        raise BadRequest(
            "Volume is smaller than the minimum size specified in image metadata."
            f" Volume size is {size << 30} bytes, minimum size is {min_disk << 30} bytes."
        )


async def _volume(ctx: Context, device: RequestedDevice, volume_id: str, auth: Auth) -> Volume:
    volume = await ctx.services.volume.show(volume_id, auth)
    if volume is None:
        raise _not_found("volume", volume_id)
    if volume.multiattach and not ctx.has_behaviour(MULTIATTACH):
        raise BadRequest(f"Multiattach volumes are only supported starting with compute API version 2.60: {volume.id}")
    if volume.status != "available" and not (volume.multiattach and volume.status == "in-use"):
        raise BadRequest(
            f"Invalid volume: Volume {volume.id} status must be 'available' or 'in-use' with multiattach enabled to"
            f" attach. Currently in '{volume.status}' status.{await failure_reason(ctx.services, volume, auth)}"
        )
    check_not_encrypted(volume)
    device.volume_size, device.multiattach = volume.size, volume.multiattach
    return volume


async def _snapshot(ctx: Context, device: RequestedDevice, snapshot_id: str, auth: Auth) -> VolumeSnapshot:
    snapshot = await ctx.services.volume.snapshot(snapshot_id, auth)
    if snapshot is None:
        raise _not_found("snapshot", snapshot_id)
    if snapshot.status != "available":
        raise BadRequest(
            f"Invalid snapshot: Snapshot {snapshot.id} status must be 'available'."
            f" Currently in '{snapshot.status}' status."
            f"{await failure_reason(ctx.services, snapshot, auth)}"
        )
    device.volume_size = device.volume_size or snapshot.size
    if device.volume_size < snapshot.size:
        raise invalid_mapping(
            f"volume_size {device.volume_size} is less than the size of snapshot"
            f" {snapshot.id}, which is {snapshot.size} GB."
        )
    return snapshot


async def _image(ctx: Context, device: RequestedDevice, image_id: str, auth: Auth) -> Image:
    image = await ctx.services.image.show(image_id, ctx.auth_token)
    if image is None:
        raise _not_found("image", image_id)
    image_checks.check_active(image)
    check_size(device, image.min_disk)
    if image.disk_bytes > (device.volume_size or 0) << 30:
        raise invalid_mapping(f"volume_size {device.volume_size or 0} is less than the image's own size.")
    return image


_LOOKUPS: dict[str, Callable[[Context, RequestedDevice, str, Auth], Awaitable[Source]]] = {
    "volume": _volume,
    "snapshot": _snapshot,
    "image": _image,
}


async def _check_types(ctx: Context, devices: list[RequestedDevice], auth: Auth) -> None:
    requested = {device.volume_type for device in devices if device.volume_type}
    if not requested:
        return
    known = {value for found in await ctx.services.volume.types(auth) for value in (found.id, found.name)}
    for missing in sorted(requested - known):
        raise BadRequest(f"Volume type {missing} could not be found.")


def _not_found(kind: str, resource_id: str) -> BadRequest:
    return invalid_mapping(f"failed to get {kind} {resource_id}.")
