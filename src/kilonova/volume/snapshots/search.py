"""Filters and sort keys of the list of snapshots."""

from __future__ import annotations

from kilonova.http import Context
from kilonova.store.conditions import Conditions
from kilonova.volume import filters
from kilonova.volume.api import api
from kilonova.volume.search import Search
from kilonova.volume.snapshots import model

METADATA = api.behaviour("snapshots are filtered by metadata")
_SORT = filters.columns(
    *("id", "name", "status", "size", "volume_id", "created_at", "updated_at", "user_id", "project_id"),
    display_name="name",
)


def _filters(ctx: Context) -> dict[str, filters.Filter]:
    return {
        **_FILTERS,
        **({"metadata": _BY_METADATA} if ctx.has_behaviour(METADATA) else {}),
        "created_at": filters.time("created_at", ctx),
        "updated_at": filters.time("updated_at", ctx),
    }


def _zone(conditions: Conditions, key: str, value: str) -> None:
    """A snapshot has the zone of its volume."""
    conditions.add("volume_id IN (SELECT v.id FROM volumes v WHERE v.zone = ?)", value)


_BY_METADATA = filters.pairs(
    "EXISTS (SELECT 1 FROM volume_snapshot_metadata m"
    " WHERE m.snapshot_id = volume_snapshots.id AND m.key = ? AND m.value = ?)"
)
_FILTERS: dict[str, filters.Filter] = {
    **filters.equal_columns("id", "name", "description", "status", "volume_id", "user_id", "project_id"),
    **filters.equal_columns(display_name="name", display_description="description", tenant_id="project_id"),
    "size": filters.number("size"),
    "consumes_quota": filters.flag("TRUE"),
    "availability_zone": _zone,
}
SEARCH = Search(
    key="snapshots",
    record=model.Snapshot,
    show=model.SHOW,
    find=model.find,
    sort=_SORT,
    nullable=("name",),
    filters=_filters,
    offered=filters.OFFERED["snapshot"],
    counted=True,
)
