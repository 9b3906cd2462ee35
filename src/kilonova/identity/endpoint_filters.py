"""Which endpoints a project has in its catalogue: all, unless endpoints or endpoint groups are added to the project."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import orjson

from kilonova.store import Reader, Row

Filter = Callable[[Row], bool]


def matches(filters: Mapping[str, Any], endpoint: Row) -> bool:
    """Whether the filters of a group select an endpoint: by its interface, service_id and region_id."""
    return all(endpoint[key] == value for key, value in filters.items())


async def added_endpoints(db: Reader, project_id: str) -> Filter | None:
    """Whether an endpoint is added to the project, by itself or by a group; None if nothing is added to it."""
    endpoints = await db.fetch("SELECT endpoint_id FROM endpoint_projects WHERE project_id = $1", project_id)
    groups = await db.fetch(
        "SELECT g.filters FROM endpoint_groups g JOIN endpoint_group_projects p ON p.endpoint_group_id = g.id"
        " WHERE p.project_id = $1",
        project_id,
    )
    if not endpoints and not groups:
        return None
    ids = {row["endpoint_id"] for row in endpoints}
    filters = [orjson.loads(row["filters"]) for row in groups]
    return lambda endpoint: endpoint["id"] in ids or any(matches(each, endpoint) for each in filters)
