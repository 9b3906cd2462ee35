"""Lists of snapshots: the filters, the order of the pages, and how many there are."""

from __future__ import annotations

from kilonova.compute.servers.listing import Conditions
from kilonova.http import Context
from kilonova.http.pagination import limit_of
from kilonova.store import Row
from kilonova.store.paging import Page
from kilonova.volume import filters
from kilonova.volume.snapshots import model

METADATA = "snapshots are found by their metadata"
_SORT = {
    "id": "id",
    "name": "name",
    "display_name": "name",
    "status": "status",
    "size": "size",
    "volume_id": "volume_id",
    "created_at": "created_at",
    "updated_at": "updated_at",
    "user_id": "user_id",
    "project_id": "project_id",
}
_NULLABLE = frozenset({"name"})


async def snapshots(ctx: Context) -> tuple[list[Row], bool]:
    """A page of rows, and whether it was full."""
    conditions = _conditions(ctx)
    limit = limit_of(ctx)
    if limit == 0:
        return [], False
    order = filters.order(ctx, _SORT, _NULLABLE)
    page = Page(order, marker=await _marker(ctx), limit=limit, first_argument=len(conditions.arguments) + 1)
    rows = await ctx.db.fetch(
        f"SELECT * FROM volume_snapshots WHERE {conditions.where()} AND {page.where} {page.order}"
        f" OFFSET {int(ctx.query_one('offset') or 0)}",
        *conditions.arguments,
        *page.arguments,
    )
    return rows, len(rows) == limit


async def count(ctx: Context) -> int:
    """How many there are on all pages."""
    conditions = _conditions(ctx)
    sql = f"SELECT COUNT(*) FROM volume_snapshots WHERE {conditions.where()}"
    return int(await ctx.db.fetch_value(sql, *conditions.arguments))


def _conditions(ctx: Context) -> Conditions:
    conditions = Conditions()
    if not filters.everywhere(ctx, model.SHOW):
        conditions.add("project_id = ?", ctx.token.project_id or "")
    filters.add(ctx, conditions, _filters(ctx), filters.OFFERED["snapshot"])
    return conditions


def _filters(ctx: Context) -> dict[str, filters.Filter]:
    return {
        **_FILTERS,
        **({"metadata": _BY_METADATA} if ctx.behaves(METADATA) else {}),
        "created_at": filters.time("created_at", ctx),
        "updated_at": filters.time("updated_at", ctx),
    }


def _zone(conditions: Conditions, key: str, value: str) -> None:
    """A snapshot is where its volume is."""
    conditions.add("volume_id IN (SELECT v.id FROM volumes v WHERE v.zone = ?)", value)


_BY_METADATA = filters.pairs(
    "EXISTS (SELECT 1 FROM volume_snapshot_metadata m"
    " WHERE m.snapshot_id = volume_snapshots.id AND m.key = ? AND m.value = ?)"
)
_FILTERS: dict[str, filters.Filter] = {
    "id": filters.equals("id"),
    "name": filters.equals("name"),
    "display_name": filters.equals("name"),
    "description": filters.equals("description"),
    "display_description": filters.equals("description"),
    "status": filters.equals("status"),
    "volume_id": filters.equals("volume_id"),
    "user_id": filters.equals("user_id"),
    "project_id": filters.equals("project_id"),
    "tenant_id": filters.equals("project_id"),
    "size": filters.number("size"),
    "consumes_quota": filters.flag("TRUE"),
    "availability_zone": _zone,
}


async def _marker(ctx: Context) -> Row | None:
    marker = ctx.query_one("marker")
    return None if marker is None else await model.find(ctx, ctx.db, marker, rule=model.SHOW)
