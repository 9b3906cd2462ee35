"""Policy checks of images. A hidden image is answered with 404."""

from __future__ import annotations

from typing import Any

from kilonova.http import Context
from kilonova.http.errors import NotFound
from kilonova.image.images import model
from kilonova.store import Reader, Row

_PRIVATE_IMAGE: dict[str, Any] = {"visibility": "private"}


def is_admin(ctx: Context) -> bool:
    return ctx.may("context_is_admin")


def sees_all(ctx: Context) -> bool:
    """Whether the policy allows the caller private images of any project."""
    return ctx.may("get_image", _PRIVATE_IMAGE)


def policy_target(row: Row) -> dict[str, Any]:
    return {
        "project_id": row["owner"],
        "owner": row["owner"],
        "visibility": row["visibility"],
        "image_id": row["id"],
        "is_public": row["visibility"] == "public",
    }


def image_not_found(image_id: str) -> NotFound:
    return NotFound(f"No image found with ID {image_id[:80]}")


async def load(ctx: Context, reader: Reader, image_id: str, rule: str | None = None) -> Row:
    """The image, or 404 if it is missing or hidden from the caller; 403 if the rule refuses."""
    row = await model.get(reader, image_id)
    if row is None or not await _is_visible(ctx, reader, row):
        raise image_not_found(image_id)
    if rule is not None:
        ctx.authorize(rule, policy_target(row))
    return row


async def _is_visible(ctx: Context, reader: Reader, row: Row) -> bool:
    if not ctx.may("get_image", policy_target(row)):
        return False
    if row["visibility"] in ("public", "community") or row["owner"] == ctx.token.project_id or sees_all(ctx):
        return True
    # The rule allows all shared images. The members decide which projects see one.
    return row["visibility"] == "shared" and await model.is_member(reader, row["id"], ctx.token.project_id)
