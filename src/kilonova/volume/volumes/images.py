"""Checks of images that volumes are created from."""

from __future__ import annotations

from kilonova.http import Context
from kilonova.http.errors import BadRequest
from kilonova.image.client import Image

GIB = 2**30


async def get_usable(ctx: Context, image_id: str) -> Image:
    """The image. Raises 400 if the caller cannot see it or it is not active."""
    image = await ctx.services.image.show(image_id, ctx.auth_token)
    if image is None:
        raise BadRequest("Invalid image identifier or unable to access requested image.")
    if image.status != "active":
        raise BadRequest(f"Invalid input received: Image {image_id} is not active.")
    return image


def check_fits(image: Image, size: int) -> None:
    """Refuse (400) an image without content, or one that does not fit in a volume of `size` GiB."""
    if image.size == 0:
        raise BadRequest(f"Invalid input received: Image {image.id} has no data.")
    needed = -(-image.disk_bytes // GIB)
    if needed > size:
        raise BadRequest(
            f"Invalid input received: Size of specified image {needed}GB is larger than volume size {size}GB."
        )
    if image.min_disk > size:
        raise BadRequest(
            f"Invalid input received: Volume size {size}GB cannot be smaller than the image minDisk size"
            f" {image.min_disk}GB."
        )
