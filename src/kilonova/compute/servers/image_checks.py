"""Checks of the image of a server: it is active, has data, and fits the flavor."""

from __future__ import annotations

from typing import Any

from kilonova.http import Context
from kilonova.http.errors import BadRequest
from kilonova.store import Row

Image = dict[str, Any]
ZERO_DISK = "os_compute_api:servers:create:zero_disk_flavor"
IMAGE_ATTRIBUTES = frozenset(
    {
        *("id", "name", "status", "visibility", "tags", "owner", "file", "schema", "self", "checksum", "size"),
        *("virtual_size", "created_at", "updated_at", "protected", "os_hidden", "os_hash_algo", "os_hash_value"),
        *("direct_url", "locations", "stores", "members"),
    }
)


async def find_active(ctx: Context, image_id: str) -> Image:
    """The image, if the caller may see it and it is active."""
    image: Image | None = await ctx.services.image.show(image_id, ctx.auth_token)
    if image is None:
        raise BadRequest(f"Can not find requested image {image_id}.")
    check_active(image)
    return image


def check_active(image: Image) -> None:
    if image["status"] != "active":
        raise BadRequest(f"Image {image['id']} is not active.")


def check_data(image: Image) -> None:
    """Check that the image has data; an image of a volume-backed server has none."""
    if not image["size"]:
        raise BadRequest(f"Image {image['id']} has no data to build a disk from.")


async def find_fitting(ctx: Context, image_id: str, flavor: Row) -> Image:
    """The image, if it fits the flavor's root disk and memory."""
    image = await find_active(ctx, image_id)
    check_ram(image, flavor)
    check_disk(ctx, image, flavor)
    return image


def check_ram(image: Image, flavor: Row) -> None:
    if int(image.get("min_ram") or 0) > flavor["ram"]:
        raise BadRequest("Flavor's memory is too small for requested image.")


def check_disk(ctx: Context, image: Image, flavor: Row) -> None:
    if flavor["disk"] == 0:
        ctx.authorize(ZERO_DISK)
        return
    if image["min_disk"] > flavor["disk"]:
        raise BadRequest("The created instance's disk would be too small: its min_disk exceeds the flavor's disk.")
    if (image["size"] or 0) > flavor["disk"] * 2**30:
        raise BadRequest("Flavor's disk is too small for requested image.")


def properties(image: Image) -> dict[str, str]:
    """The image's properties, which the server's row keeps."""
    return {key: str(value) for key, value in image.items() if key not in IMAGE_ATTRIBUTES and value is not None}
