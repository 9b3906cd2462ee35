"""Filters, sort keys and summary of the list of volumes."""

from __future__ import annotations

from msgspec import Struct

from kilonova.http import Context
from kilonova.store.conditions import Conditions
from kilonova.volume import filters
from kilonova.volume.backend_capabilities import BACKEND, POOL
from kilonova.volume.search import Search
from kilonova.volume.volumes import model

_SORT = filters.columns(
    *("id", "name", "status", "size", "bootable", "created_at", "updated_at", "user_id", "project_id"),
    display_name="name",
    availability_zone="zone",
    volume_type_id="type_id",
)
_HAS_METADATA = "EXISTS (SELECT 1 FROM volume_metadata m WHERE m.volume_id = volumes.id AND m.key = ? AND m.value = ?)"
_HAS_IMAGE_METADATA = {
    "sqlite": "EXISTS (SELECT 1 FROM json_each(volumes.image_metadata) i WHERE i.key = ? AND i.value = ?)",
    "postgresql": "CAST(volumes.image_metadata AS JSON) ->> CAST(? AS TEXT) = ?",
}


class VolumeSummary(Struct, frozen=True):
    """`metadata` has all values of each key."""

    total_count: int
    total_size: int
    metadata: dict[str, list[str]]


async def summary(ctx: Context) -> VolumeSummary:
    conditions = SEARCH.conditions(ctx)
    where = conditions.where()
    totals = await ctx.db.fetch_one(
        f"SELECT COUNT(*) AS number, COALESCE(SUM(size), 0) AS size FROM volumes WHERE {where}", *conditions.arguments
    )
    assert totals is not None
    entries = await ctx.db.fetch(
        "SELECT DISTINCT d.key, d.value FROM volume_metadata d JOIN volumes ON volumes.id = d.volume_id"
        f" WHERE {where} ORDER BY d.key, d.value",
        *conditions.arguments,
    )
    values: dict[str, list[str]] = {}
    for row in entries:
        values.setdefault(row["key"], []).append(row["value"])
    return VolumeSummary(int(totals["number"]), int(totals["size"]), values)


def _filters(ctx: Context) -> dict[str, filters.Filter]:
    return {
        **_FILTERS,
        "glance_metadata": filters.pairs(_HAS_IMAGE_METADATA[ctx.db.dialect]),
        "created_at": filters.time("created_at", ctx),
        "updated_at": filters.time("updated_at", ctx),
    }


def _none(conditions: Conditions, key: str, value: str) -> None:
    """For columns that no volume has."""
    conditions.add("FALSE")


def _host(conditions: Conditions, key: str, value: str) -> None:
    if value not in (BACKEND, POOL):
        conditions.add("FALSE")


def _type(conditions: Conditions, key: str, value: str) -> None:
    conditions.add("type_id IN (SELECT id FROM volume_types WHERE id = ? OR name = ?)", value, value)


_FILTERS: dict[str, filters.Filter] = {
    **filters.equal_columns("id", "name", "description", "status", "user_id", "project_id", "snapshot_id"),
    **filters.equal_columns(display_name="name", display_description="description", tenant_id="project_id"),
    **filters.equal_columns(availability_zone="zone", volume_type_id="type_id", source_volid="source_volume_id"),
    "volume_type": _type,
    "size": filters.number("size"),
    "bootable": filters.flag("bootable"),
    "multiattach": filters.flag("multiattach"),
    "encrypted": filters.flag("FALSE"),
    "consumes_quota": filters.flag("TRUE"),
    "metadata": filters.pairs(_HAS_METADATA),
    "host": _host,
    **dict.fromkeys(("group_id", "consistencygroup_id", "migration_status", "replication_status"), _none),
}
SEARCH = Search(
    key="volumes",
    record=model.Volume,
    show=model.SHOW,
    find=model.find,
    sort=_SORT,
    nullable=("name",),
    filters=_filters,
    offered=filters.OFFERED["volume"],
    counted=True,
)
