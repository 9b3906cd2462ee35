"""Lists of volumes: the filters, the order of the pages, and what is counted of them."""

from __future__ import annotations

from typing import Any

from kilonova.http import Context
from kilonova.store import Row
from kilonova.store.conditions import Conditions
from kilonova.volume import filters
from kilonova.volume.backend import BACKEND, POOL
from kilonova.volume.listing import Listing
from kilonova.volume.volumes import model

_SORT = {
    "id": "id",
    "name": "name",
    "display_name": "name",
    "status": "status",
    "size": "size",
    "availability_zone": "zone",
    "bootable": "bootable",
    "created_at": "created_at",
    "updated_at": "updated_at",
    "volume_type_id": "type_id",
    "user_id": "user_id",
    "project_id": "project_id",
}
_OF_METADATA = "EXISTS (SELECT 1 FROM volume_metadata m WHERE m.volume_id = volumes.id AND m.key = ? AND m.value = ?)"
_OF_IMAGE = {
    "sqlite": "EXISTS (SELECT 1 FROM json_each(volumes.image_metadata) i WHERE i.key = ? AND i.value = ?)",
    "postgresql": "CAST(volumes.image_metadata AS JSON) ->> CAST(? AS TEXT) = ?",
}


LISTING = Listing(
    table="volumes",
    columns=model.READ,
    show=model.SHOW,
    find=model.find,
    sort=_SORT,
    nullable=("name",),
    offered=filters.OFFERED["volume"],
)


async def volumes(ctx: Context) -> tuple[list[Row], bool]:
    return await LISTING.page(ctx, _filters(ctx))


async def count(ctx: Context) -> int:
    return await LISTING.count(ctx, _filters(ctx))


async def summary(ctx: Context) -> dict[str, Any]:
    conditions = LISTING.conditions(ctx, _filters(ctx))
    where = conditions.where()
    totals = await ctx.db.fetch_one(
        f"SELECT COUNT(*) AS number, COALESCE(SUM(size), 0) AS size FROM volumes WHERE {where}", *conditions.arguments
    )
    assert totals is not None
    said = await ctx.db.fetch(
        "SELECT DISTINCT d.key, d.value FROM volume_metadata d JOIN volumes ON volumes.id = d.volume_id"
        f" WHERE {where} ORDER BY d.key, d.value",
        *conditions.arguments,
    )
    values: dict[str, list[str]] = {}
    for row in said:
        values.setdefault(row["key"], []).append(row["value"])
    return {"total_count": int(totals["number"]), "total_size": int(totals["size"]), "metadata": values}


def _filters(ctx: Context) -> dict[str, filters.Filter]:
    return {
        **_FILTERS,
        "glance_metadata": filters.pairs(_OF_IMAGE[ctx.db.dialect]),
        "created_at": filters.time("created_at", ctx),
        "updated_at": filters.time("updated_at", ctx),
    }


def _nobody(conditions: Conditions, key: str, value: str) -> None:
    """No volume has any of this."""
    conditions.add("FALSE")


def _host(conditions: Conditions, key: str, value: str) -> None:
    if value not in (BACKEND, POOL):
        conditions.add("FALSE")


def _type(conditions: Conditions, key: str, value: str) -> None:
    conditions.add("type_id IN (SELECT id FROM volume_types WHERE id = ? OR name = ?)", value, value)


_FILTERS: dict[str, filters.Filter] = {
    "id": filters.equals("id"),
    "name": filters.equals("name"),
    "display_name": filters.equals("name"),
    "description": filters.equals("description"),
    "display_description": filters.equals("description"),
    "status": filters.equals("status"),
    "availability_zone": filters.equals("zone"),
    "user_id": filters.equals("user_id"),
    "project_id": filters.equals("project_id"),
    "tenant_id": filters.equals("project_id"),
    "volume_type_id": filters.equals("type_id"),
    "snapshot_id": filters.equals("snapshot_id"),
    "source_volid": filters.equals("source_volume_id"),
    "volume_type": _type,
    "size": filters.number("size"),
    "bootable": filters.flag("bootable"),
    "multiattach": filters.flag("multiattach"),
    "encrypted": filters.flag("FALSE"),
    "consumes_quota": filters.flag("TRUE"),
    "metadata": filters.pairs(_OF_METADATA),
    "host": _host,
    "group_id": _nobody,
    "consistencygroup_id": _nobody,
    "migration_status": _nobody,
    "replication_status": _nobody,
}
