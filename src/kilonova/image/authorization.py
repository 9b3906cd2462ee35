"""Policy checks of images. A hidden image is answered with 404."""

from __future__ import annotations

from kilonova.http import Context
from kilonova.http.errors import NotFound
from kilonova.image.images import model
from kilonova.image.images.model import Image
from kilonova.store import Reader

_PRIVATE_IMAGE = {"visibility": "private"}


def is_admin(ctx: Context) -> bool:
    return ctx.may("context_is_admin")


def sees_all(ctx: Context) -> bool:
    """Whether the policy allows the caller private images of any project."""
    return ctx.may("get_image", _PRIVATE_IMAGE)


def policy_target(image: Image) -> dict[str, object]:
    return {
        "project_id": image.owner,
        "owner": image.owner,
        "visibility": image.visibility,
        "image_id": image.id,
        "is_public": image.visibility == "public",
    }


def image_not_found(image_id: str) -> NotFound:
    return NotFound(f"No image found with ID {image_id[:80]}")


async def load(ctx: Context, reader: Reader, image_id: str, rule: str | None = None) -> Image:
    """The image, or 404 if it is missing or hidden from the caller; 403 if the rule refuses."""
    image = await model.get(reader, image_id)
    if image is None or not await _is_visible(ctx, reader, image):
        raise image_not_found(image_id)
    if rule is not None:
        ctx.authorize(rule, policy_target(image))
    return image


async def _is_visible(ctx: Context, reader: Reader, image: Image) -> bool:
    if not ctx.may("get_image", policy_target(image)):
        return False
    if image.visibility in ("public", "community") or image.owner == ctx.token.project_id or sees_all(ctx):
        return True
    # The rule allows all shared images. The members decide which projects see one.
    return image.visibility == "shared" and await model.is_member(reader, image.id, ctx.token.project_id)
