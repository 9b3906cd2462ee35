"""Lists of attachments: the filters, and the order of the pages."""

from __future__ import annotations

from kilonova.compute.servers.listing import Conditions
from kilonova.http import Context
from kilonova.http.pagination import limit_of
from kilonova.store import Row
from kilonova.store.paging import Page
from kilonova.volume import filters
from kilonova.volume.attachments import model

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


async def attachments(ctx: Context) -> tuple[list[Row], bool]:
    """A page of rows, and whether it was full."""
    conditions = Conditions()
    if not filters.everywhere(ctx, model.SHOW):
        conditions.add("project_id = ?", ctx.token.project_id or "")
    filters.add(ctx, conditions, _FILTERS, filters.OFFERED["attachment"])
    limit = limit_of(ctx)
    if limit == 0:
        return [], False
    order = filters.order(ctx, _SORT, ())
    page = Page(order, marker=await _marker(ctx), limit=limit, first_argument=len(conditions.arguments) + 1)
    rows = await ctx.db.fetch(
        f"SELECT * FROM volume_attachments WHERE {conditions.where()} AND {page.where} {page.order}"
        f" OFFSET {int(ctx.query_one('offset') or 0)}",
        *conditions.arguments,
        *page.arguments,
    )
    return rows, len(rows) == limit


async def _marker(ctx: Context) -> Row | None:
    marker = ctx.query_one("marker")
    return None if marker is None else await model.find(ctx, ctx.db, marker, rule=model.SHOW)
