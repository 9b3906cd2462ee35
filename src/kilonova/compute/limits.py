"""The limits of a project and its usage."""

from __future__ import annotations

from kilonova.compute.api import api
from kilonova.compute.quotas import model as quotas
from kilonova.compute.quotas.source import find_source
from kilonova.http import Context, Response, View, col, repeatable
from kilonova.http.parameter_types import STRING

QUERY = repeatable({"tenant_id": STRING, "reserved": STRING})
_INTEGER = {"type": "integer"}
# Keys of the view, and the quota resource of each.
_LIMITS = {
    "maxTotalInstances": "instances",
    "maxTotalCores": "cores",
    "maxTotalRAMSize": "ram",
    "maxServerMeta": "metadata_items",
    "maxTotalKeypairs": "key_pairs",
    "maxServerGroups": "server_groups",
    "maxServerGroupMembers": "server_group_members",
}
_USED = {
    "totalInstancesUsed": "instances",
    "totalCoresUsed": "cores",
    "totalRAMUsed": "ram",
    "totalServerGroupsUsed": "server_groups",
}

api.view(
    View(
        "limits",
        {
            **{key: col(resource, _INTEGER) for key, resource in _LIMITS.items()},
            **{key: col(f"{resource} used", _INTEGER) for key, resource in _USED.items()},
        },
    )
)


@api.route(
    "GET", "/limits", policy="os_compute_api:limits", checks=["os_compute_api:limits:other_project"], query=QUERY
)
async def show(ctx: Context) -> Response:
    """Show the limits and the usage of a project."""
    project_id = ctx.query_one("tenant_id") or ctx.token.project_id
    if project_id != ctx.token.project_id:
        ctx.authorize("os_compute_api:limits:other_project", {"project_id": project_id})
    source = await find_source(ctx.services, project_id)
    limits = await quotas.limits(ctx.db, project_id, source)
    used = dict.fromkeys(_USED.values(), 0) | await quotas.usage(ctx.db, project_id or "", source)
    row = {**limits, **{f"{resource} used": amount for resource, amount in used.items()}}
    return Response({"limits": {"rate": [], "absolute": ctx.render("limits", row)}})
