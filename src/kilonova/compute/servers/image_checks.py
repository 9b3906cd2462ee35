"""Checks of the image of a server: it is active, has data, and fits the flavor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from kilonova.http import Context
from kilonova.http.errors import BadRequest
from kilonova.image.client import ATTRIBUTES, Image

ZERO_DISK = "os_compute_api:servers:create:zero_disk_flavor"
_DISK_ATTRIBUTES = ("disk_format", "container_format", "min_disk", "min_ram")
_NOT_KEPT = ATTRIBUTES.difference(_DISK_ATTRIBUTES) | {"image_id", "image_name"}


class FlavorSize(Protocol):
    @property
    def ram(self) -> int: ...

    @property
    def disk(self) -> int: ...


async def find_active(ctx: Context, image_id: str) -> Image:
    """The image, if the caller may see it and it is active."""
    image = await ctx.services.image.show(image_id, ctx.auth_token)
    if image is None:
        raise BadRequest(f"Can not find requested image {image_id}.")
    check_active(image)
    return image


def check_active(image: Image) -> None:
    if image.status != "active":
        raise BadRequest(f"Image {image.id} is not active.")


def check_data(image: Image) -> None:
    """Check that the image has data; an image of a volume-backed server has none. A null size is an unknown one."""
    if image.size == 0:
        raise BadRequest(f"Image {image.id} has no data to build a disk from.")


async def find_fitting(ctx: Context, image_id: str, flavor: FlavorSize) -> Image:
    """The image, if it fits the flavor's root disk and memory."""
    image = await find_active(ctx, image_id)
    check_ram(image.min_ram, flavor)
    check_disk(ctx, image, flavor)
    return image


def check_ram(min_ram: int, flavor: FlavorSize) -> None:
    if min_ram > flavor.ram:
        raise BadRequest("Flavor's memory is too small for requested image.")


def check_disk(ctx: Context, image: Image, flavor: FlavorSize) -> None:
    if flavor.disk == 0:
        ctx.authorize(ZERO_DISK)
        return
    if image.min_disk > flavor.disk:
        raise BadRequest("The created instance's disk would be too small: its min_disk exceeds the flavor's disk.")
    if (image.size or 0) > flavor.disk * 2**30:
        raise BadRequest("Flavor's disk is too small for requested image.")


def properties(image: Image) -> dict[str, str]:
    """The image's properties and disk attributes, which the server's row keeps."""
    return image.properties_with(*_DISK_ATTRIBUTES)


def volume_properties(metadata: Mapping[str, str]) -> dict[str, str]:
    """The same for a volume-backed server, from the volume's image metadata."""
    return {key: value for key, value in metadata.items() if key not in _NOT_KEPT}
