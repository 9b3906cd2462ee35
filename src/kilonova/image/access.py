"""Which images a caller may see and change. What one may not see does not exist: 404."""

from __future__ import annotations

from typing import Any

from kilonova.http import Context
from kilonova.http.errors import NotFound
from kilonova.image import model
from kilonova.store import Reader, Row

_NOBODYS: dict[str, Any] = {"visibility": "private"}


def is_admin(ctx: Context) -> bool:
    return ctx.may("context_is_admin")


def sees_all(ctx: Context) -> bool:
    """Whether the rules let the caller at private images of any project."""
    return ctx.may("get_image", _NOBODYS)


def target_of(row: Row) -> dict[str, Any]:
    return {
        "project_id": row["owner"],
        "owner": row["owner"],
        "visibility": row["visibility"],
        "image_id": row["id"],
        "is_public": row["visibility"] == "public",
    }


def not_found(image_id: str) -> NotFound:
    return NotFound(f"No image found with ID {image_id[:80]}")


async def load(ctx: Context, reader: Reader, image_id: str, rule: str | None = None) -> Row:
    """The image if the caller may see it; with a rule, 403 unless that lets the caller at it."""
    row = await model.get(reader, image_id)
    if row is None or not await _is_visible(ctx, reader, row):
        raise not_found(image_id)
    if rule is not None:
        ctx.authorize(rule, target_of(row))
    return row


async def _is_visible(ctx: Context, reader: Reader, row: Row) -> bool:
    if not ctx.may("get_image", target_of(row)):
        return False
    if row["visibility"] in ("public", "community") or row["owner"] == ctx.token.project_id or sees_all(ctx):
        return True
    # The rule lets everybody at shared images; with whom one is shared stands in the database.
    return row["visibility"] == "shared" and await model.is_member(reader, row["id"], ctx.token.project_id)
