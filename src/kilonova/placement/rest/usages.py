"""Usages of a provider, and of a project."""

from __future__ import annotations

from kilonova.http import Context, Response
from kilonova.http.errors import BadRequest
from kilonova.http.schema import Schema
from kilonova.placement.allocations import get_usages
from kilonova.placement.api import api, with_last_modified
from kilonova.placement.rest.lookup import PROVIDER_PATH, find_provider
from kilonova.store import Row

USAGES_BY_TYPE = api.behaviour("usages are grouped by consumer type")
TOTAL_POLICY = "placement:usages"

IDENT: Schema = {"type": "string", "minLength": 1, "maxLength": 255}
TYPE: Schema = {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^([A-Z0-9_]+|all|unknown)$"}
ALL, UNKNOWN = "all", "unknown"


@api.route("GET", f"{PROVIDER_PATH}/usages", policy="placement:resource_providers:usages", query={"*": {}})
async def of_provider(ctx: Context, uuid: str) -> Response:
    """Show the usages of a provider."""
    provider = await find_provider(ctx.db, uuid)
    used = await get_usages(ctx.db, [provider.uuid])
    shown = {"resource_provider_generation": provider.generation, "usages": used.get(provider.uuid, {})}
    return with_last_modified(ctx, shown)


@api.route(
    "GET", "/usages", checks=[TOTAL_POLICY], query={"project_id": IDENT, "user_id": IDENT, "consumer_type": TYPE}
)
async def of_project(ctx: Context) -> Response:
    """Show the usages of a project, or of a user in it, by consumer type."""
    project_id = ctx.query_one("project_id")
    if project_id is None:
        raise BadRequest("Invalid query string parameters: 'project_id' is a required property")
    ctx.authorize(TOTAL_POLICY, {"project_id": project_id})
    user_id, consumer_type = ctx.query_one("user_id"), ctx.query_one("consumer_type")
    rows = await ctx.db.fetch(_USED, project_id, user_id)
    if not ctx.has_behaviour(USAGES_BY_TYPE):
        return with_last_modified(ctx, {"usages": _sum_by_class(rows)})
    counts = {row["type"]: row["consumers"] for row in await ctx.db.fetch(_COUNTED, project_id, user_id)}
    groups: dict[str, dict[str, int]] = {}
    if consumer_type == ALL:
        if counts:
            groups[ALL] = {**_sum_by_class(rows), "consumer_count": sum(counts.values())}
    else:
        for kind, count in counts.items():
            name = UNKNOWN if kind is None else kind
            if consumer_type in (None, name):
                used = _sum_by_class([row for row in rows if row["type"] == kind])
                groups[name] = {**used, "consumer_count": count}
    return with_last_modified(ctx, {"usages": groups})


def _sum_by_class(rows: list[Row]) -> dict[str, int]:
    found: dict[str, int] = {}
    for row in rows:
        found[row["resource_class"]] = found.get(row["resource_class"], 0) + row["used"]
    return found


_WHERE = "c.project_id = $1 AND (CAST($2 AS TEXT) IS NULL OR c.user_id = $2)"
_USED = f"""
SELECT c.type, a.resource_class, CAST(SUM(a.used) AS BIGINT) AS used
FROM consumers c JOIN allocations a ON a.consumer_uuid = c.uuid WHERE {_WHERE}
GROUP BY c.type, a.resource_class
"""
_COUNTED = f"SELECT c.type, COUNT(*) AS consumers FROM consumers c WHERE {_WHERE} GROUP BY c.type"
