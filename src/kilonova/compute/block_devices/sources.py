"""Sources of a new server's volumes: looks up volumes, snapshots and images with the caller's token and checks them."""

from __future__ import annotations

from typing import Any

from kilonova.compute import volume_messages
from kilonova.compute.servers import image_checks
from kilonova.http import Context
from kilonova.http.errors import BadRequest
from kilonova.identity.client import Auth
from kilonova.store import Row

MULTIATTACH = "volumes that several servers may have can be attached"
Item = dict[str, Any]


async def look_up(ctx: Context, devices: list[Row]) -> dict[str, Item]:
    """The sources of the devices by id. Completes the devices with sizes and `multiattach`."""
    volumes = [device for device in devices if device["destination_type"] == "volume"]
    if not volumes:
        return {}
    auth = Auth(ctx.auth_token, ctx.token.project_id)
    await _check_types(ctx, volumes, auth)
    known: dict[str, Item] = {}
    for device in volumes:
        lookup = _LOOKUPS.get(device["source_type"])
        if lookup is not None:
            known[device["source_id"]] = await lookup(ctx, device, auth)
    return known


async def get_root_image(ctx: Context, root: Row, known: dict[str, Item]) -> Item:
    """The properties of the image that the root volume is, or will be, created from."""
    source = known.get(root["source_id"], {})
    if root["source_type"] == "image":
        return source
    if root["source_type"] == "snapshot":
        auth = Auth(ctx.auth_token, ctx.token.project_id)
        source = await ctx.services.volume.show(source["volume_id"], auth) or {}
    described = dict(source.get("volume_image_metadata") or {})
    if int(described.get("min_disk") or 0) > root["volume_size"]:
        raise _too_small(root["volume_size"], int(described["min_disk"]))
    return {key: value for key, value in described.items() if key not in ("image_id", "image_name")}


async def _volume(ctx: Context, device: Row, auth: Auth) -> Item:
    volume = await ctx.services.volume.show(device["source_id"], auth)
    if volume is None:
        raise _not_found("volume", device["source_id"])
    if device["boot_index"] == 0 and volume["bootable"] != "true":
        raise BadRequest(f"Block Device {volume['id']} is not bootable.")
    shared = bool(volume.get("multiattach"))
    if shared and not ctx.has_behaviour(MULTIATTACH):
        raise BadRequest(
            f"Multiattach volumes are only supported starting with compute API version 2.60: {volume['id']}"
        )
    if volume["status"] != "available" and not (shared and volume["status"] == "in-use"):
        raise BadRequest(
            f"Invalid volume: Volume {volume['id']} status must be 'available' or 'in-use' with multiattach enabled to"
            f" attach. Currently in '{volume['status']}' status.{await _failure_reason(ctx, volume, auth)}"
        )
    device["volume_size"], device["multiattach"] = volume["size"], shared
    return volume


async def _snapshot(ctx: Context, device: Row, auth: Auth) -> Item:
    snapshot = await ctx.services.volume.snapshot(device["source_id"], auth)
    if snapshot is None:
        raise _not_found("snapshot", device["source_id"])
    if snapshot["status"] != "available":
        raise BadRequest(
            f"Invalid snapshot: Snapshot {snapshot['id']} status must be 'available'."
            f" Currently in '{snapshot['status']}' status."
            f"{await _failure_reason(ctx, snapshot, auth)}"
        )
    device["volume_size"] = device["volume_size"] or snapshot["size"]
    if device["volume_size"] < snapshot["size"]:
        raise BadRequest(
            f"Block Device Mapping is Invalid: volume_size {device['volume_size']} is less than the size of snapshot"
            f" {snapshot['id']}, which is {snapshot['size']} GB."
        )
    return snapshot


async def _failure_reason(ctx: Context, resource: Item, auth: Auth) -> str:
    failed = resource["status"].startswith("error")
    return await volume_messages.message_for_caller(ctx.services, resource["id"], auth) if failed else ""


async def _image(ctx: Context, device: Row, auth: Auth) -> Item:
    image: Item | None = await ctx.services.image.show(device["source_id"], ctx.auth_token)
    if image is None:
        raise _not_found("image", device["source_id"])
    image_checks.check_active(image)
    size = device["volume_size"]
    if image["min_disk"] > size:
        raise _too_small(size, image["min_disk"])
    if max(image["size"] or 0, image.get("virtual_size") or 0) > size << 30:
        raise BadRequest(f"Block Device Mapping is Invalid: volume_size {size} is less than the image's own size.")
    return image


_LOOKUPS = {"volume": _volume, "snapshot": _snapshot, "image": _image}


async def _check_types(ctx: Context, devices: list[Row], auth: Auth) -> None:
    requested = {device["volume_type"] for device in devices if device["volume_type"]}
    if not requested:
        return
    known = {value for found in await ctx.services.volume.types(auth) for value in (found["id"], found["name"])}
    for missing in sorted(requested - known):
        raise BadRequest(f"Volume type {missing} could not be found.")


def _not_found(kind: str, resource_id: str) -> BadRequest:
    return BadRequest(f"Block Device Mapping is Invalid: failed to get {kind} {resource_id}.")


def _too_small(size: int, minimum: int) -> BadRequest:
    return BadRequest(
        "Volume is smaller than the minimum size specified in image metadata."
        f" Volume size is {size << 30} bytes, minimum size is {minimum << 30} bytes."
    )
