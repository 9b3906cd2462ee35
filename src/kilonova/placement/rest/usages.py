"""Usages: how much of a provider is used, and how much a project uses."""

from __future__ import annotations

from typing import Any

from kilonova.http import Answer, Context
from kilonova.http.errors import BadRequest
from kilonova.placement.allocations import usages
from kilonova.placement.api import api, dated
from kilonova.placement.rest.common import PROVIDER, Schema, find

BY_TYPE = "usages are told by type of consumer"
TOTAL = "placement:usages"

IDENT: Schema = {"type": "string", "minLength": 1, "maxLength": 255}
TYPE: Schema = {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^([A-Z0-9_]+|all|unknown)$"}
ALL, UNKNOWN = "all", "unknown"


@api.route("GET", f"{PROVIDER}/usages", policy="placement:resource_providers:usages", query={"*": {}})
async def of_provider(ctx: Context, uuid: str) -> Answer:
    """Show what is used of a provider."""
    provider = await find(ctx.db, uuid)
    used = await usages(ctx.db, [provider["uuid"]])
    shown = {"resource_provider_generation": provider["generation"], "usages": used.get(provider["uuid"], {})}
    return dated(ctx, shown)


@api.route("GET", "/usages", checks=[TOTAL], query={"project_id": IDENT, "user_id": IDENT, "consumer_type": TYPE})
async def of_project(ctx: Context) -> Answer:
    """Show what a project uses, or one user in it, by type of consumer."""
    project_id = ctx.query_one("project_id")
    if project_id is None:
        raise BadRequest("Invalid query string parameters: 'project_id' is a required property")
    ctx.authorize(TOTAL, {"project_id": project_id})
    user_id, asked = ctx.query_one("user_id"), ctx.query_one("consumer_type")
    rows = await ctx.db.fetch(_USED, project_id, user_id)
    if not ctx.behaves(BY_TYPE):
        return dated(ctx, {"usages": _summed(rows)})
    counts = {row["type"]: row["consumers"] for row in await ctx.db.fetch(_COUNTED, project_id, user_id)}
    groups: dict[str, dict[str, int]] = {}
    if asked == ALL:
        if counts:
            groups[ALL] = {**_summed(rows), "consumer_count": sum(counts.values())}
    else:
        for kind, count in counts.items():
            name = UNKNOWN if kind is None else kind
            if asked in (None, name):
                used = _summed([row for row in rows if row["type"] == kind])
                groups[name] = {**used, "consumer_count": count}
    return dated(ctx, {"usages": groups})


def _summed(rows: list[dict[str, Any]]) -> dict[str, int]:
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
