"""Lists of attachments: the filters, and the order of the pages."""

from __future__ import annotations

from kilonova.http import Context
from kilonova.store import Row
from kilonova.volume import filters
from kilonova.volume.attachments import model
from kilonova.volume.listing import Listing

_FILTERS: dict[str, filters.Filter] = {
    "id": filters.equals("id"),
    "volume_id": filters.equals("volume_id"),
    "instance_id": filters.equals("server_id"),
    "status": filters.equals("status"),
    "attach_status": filters.equals("status"),
    "project_id": filters.equals("project_id"),
}
_SORT = {
    "id": "id",
    "volume_id": "volume_id",
    "status": "status",
    "created_at": "created_at",
    "updated_at": "updated_at",
}


LISTING = Listing(
    table="volume_attachments", show=model.SHOW, find=model.find, sort=_SORT, offered=filters.OFFERED["attachment"]
)


async def attachments(ctx: Context) -> tuple[list[Row], bool]:
    return await LISTING.page(ctx, _FILTERS)
