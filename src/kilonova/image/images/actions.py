"""Routes of image actions: deactivate and reactivate."""

from __future__ import annotations

from kilonova.http import Context, Response
from kilonova.http.errors import Forbidden
from kilonova.image.api import api
from kilonova.image.authorization import load
from kilonova.image.images import model


@api.route("POST", "/v2/images/{image_id}/actions/deactivate", checks=["deactivate"], status=204)
async def deactivate(ctx: Context, image_id: str) -> Response:
    """Deactivate an image: only administrators can download its data."""
    return await _change_status(ctx, image_id, "deactivate", "active", "deactivated")


@api.route("POST", "/v2/images/{image_id}/actions/reactivate", checks=["reactivate"], status=204)
async def reactivate(ctx: Context, image_id: str) -> Response:
    """Reactivate an image."""
    return await _change_status(ctx, image_id, "reactivate", "deactivated", "active")


async def _change_status(ctx: Context, image_id: str, rule: str, before: str, after: str) -> Response:
    image = await load(ctx, ctx.db, image_id, rule)
    if image.status not in (before, after):
        raise Forbidden(f"Not allowed to {rule} image in status '{image.status}'")
    async with ctx.db.transaction() as tx:
        await model.set_status(tx, image_id, before, after, ctx.now)
    return Response()
