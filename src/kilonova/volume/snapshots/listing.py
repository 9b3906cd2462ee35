"""Lists of snapshots: the filters, the order of the pages, and how many there are."""

from __future__ import annotations

from kilonova.http import Context
from kilonova.store import Row
from kilonova.store.conditions import Conditions
from kilonova.volume import filters
from kilonova.volume.listing import Listing
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
LISTING = Listing(
    table="volume_snapshots",
    show=model.SHOW,
    find=model.find,
    sort=_SORT,
    nullable=("name",),
    offered=filters.OFFERED["snapshot"],
)


async def snapshots(ctx: Context) -> tuple[list[Row], bool]:
    return await LISTING.page(ctx, _filters(ctx))


async def count(ctx: Context) -> int:
    return await LISTING.count(ctx, _filters(ctx))


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
