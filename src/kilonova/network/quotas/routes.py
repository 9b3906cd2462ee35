"""/v2.0/quotas."""

from __future__ import annotations

from kilonova.http import Answer, Context
from kilonova.http.errors import NotFound
from kilonova.network.access import target_of
from kilonova.network.api import api
from kilonova.network.quotas import model

_LIMIT = {"type": "integer", "minimum": -1, "maximum": 2**31 - 1}
_IGNORED = {"tenant_id": {"type": "string"}, "project_id": {"type": "string"}, "force": {}, "check_limit": {}}
UPDATE = {
    "type": "object",
    "properties": {
        "quota": {
            "type": "object",
            "properties": {**dict.fromkeys(model.DEFAULTS, _LIMIT), **_IGNORED},
            "additionalProperties": False,
        }
    },
    "required": ["quota"],
    "additionalProperties": False,
}


@api.route("GET", "/v2.0/quotas", policy="update_quota")
async def index(ctx: Context) -> Answer:
    """List the projects whose quota is not the default."""
    found = await ctx.db.fetch("SELECT DISTINCT project_id FROM network_quotas ORDER BY project_id")
    quotas = []
    for project_id in [row["project_id"] for row in found]:
        quotas.append({**await model.limits(ctx.db, project_id), "project_id": project_id, "tenant_id": project_id})
    return Answer({"quotas": quotas})


@api.route("GET", "/v2.0/quotas/{project_id}", checks=["get_quota"])
async def show(ctx: Context, project_id: str) -> Answer:
    """Show a project's quota."""
    ctx.authorize("get_quota", target_of(project_id))
    return Answer({"quota": await model.limits(ctx.db, project_id)})


@api.route("GET", "/v2.0/quotas/{project_id}/default", checks=["get_quota"])
async def show_default(ctx: Context, project_id: str) -> Answer:
    """Show the quota of a project for which nothing was set."""
    ctx.authorize("get_quota", target_of(project_id))
    return Answer({"quota": model.DEFAULTS})


async def show_details(ctx: Context, project_id: str) -> Answer:
    """Show a project's quota and what is used of it."""
    ctx.authorize("get_quota", target_of(project_id))
    details = {
        resource: {"limit": limit, "used": await model.used(ctx.db, project_id, resource), "reserved": 0}
        for resource, limit in (await model.limits(ctx.db, project_id)).items()
    }
    return Answer({"quota": details})


for _name in ("details", "details.json"):
    api.route("GET", f"/v2.0/quotas/{{project_id}}/{_name}", checks=["get_quota"])(show_details)


@api.route("PUT", "/v2.0/quotas/{project_id}", policy="update_quota", body=UPDATE)
async def update(ctx: Context, project_id: str) -> Answer:
    """Change a project's quota."""
    changes = {name: value for name, value in ctx.body["quota"].items() if name in model.DEFAULTS}
    async with ctx.db.transaction() as tx:
        await model.change(tx, project_id, changes)
        limits = await model.limits(tx, project_id)
    return Answer({"quota": limits})


@api.route("DELETE", "/v2.0/quotas/{project_id}", policy="delete_quota", status=204)
async def delete(ctx: Context, project_id: str) -> Answer:
    """Put a project's quota back to the defaults."""
    async with ctx.db.transaction() as tx:
        if not await model.reset(tx, project_id):
            raise NotFound(f"Quota for tenant {project_id} could not be found.", code="TenantQuotaNotFound")
    return Answer()
