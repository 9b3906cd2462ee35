"""Routes of export locations. A share has one, once its directory exists; its id is that of the share."""

from __future__ import annotations

from kilonova import clock
from kilonova.http import Context, Response
from kilonova.http.errors import NotFound
from kilonova.share.api import api
from kilonova.share.shares import model
from kilonova.share.shares.model import Share

PATH = "/shares/{share_id}/export_locations"
INDEX, SHOW = "share_export_location:index", "share_export_location:show"


@api.route("GET", PATH, checks=[INDEX])
async def index(ctx: Context, share_id: str) -> Response:
    """List the export locations of a share."""
    share = await model.find(ctx, ctx.db, share_id, rule=INDEX)
    return Response({"export_locations": [] if share.export_path is None else [_view(ctx, share)]})


@api.route("GET", PATH + "/{location_id}", checks=[SHOW])
async def show(ctx: Context, share_id: str, location_id: str) -> Response:
    """Show an export location of a share."""
    share = await model.find(ctx, ctx.db, share_id, rule=SHOW)
    if share.export_path is None or location_id != share.id:
        raise NotFound(f"Export location {location_id[:80]} could not be found.")
    times = {"created_at": clock.iso_micro(share.created_at), "updated_at": clock.iso_micro(share.updated_at)}
    return Response({"export_location": {**_view(ctx, share), **times}})


def _view(ctx: Context, share: Share) -> dict[str, object]:
    shown: dict[str, object] = {"id": share.id, "path": share.export_path, "preferred": True}
    if ctx.may("context_is_admin"):
        shown |= {"share_instance_id": share.id, "is_admin_only": False}
    return shown
