"""The route of limits."""

from __future__ import annotations

from kilonova.compute.api import api
from kilonova.compute.limits import views
from kilonova.compute.quotas import model as quotas
from kilonova.http import Answer, Context
from kilonova.http.pieces import STRING

QUERY = {"tenant_id": STRING, "reserved": STRING}


@api.route(
    "GET",
    "/limits",
    policy="os_compute_api:limits",
    checks=["os_compute_api:limits:other_project"],
    query=QUERY,
)
async def show(ctx: Context) -> Answer:
    """Show the limits of the own project, and what it uses."""
    project_id = ctx.query_one("tenant_id") or ctx.token.project_id
    if project_id != ctx.token.project_id:
        ctx.authorize("os_compute_api:limits:other_project", {"project_id": project_id})
    limits = await quotas.limits(ctx.db, project_id, ctx.services.config)
    used = dict.fromkeys(views.USED.values(), 0) | await quotas.usage(ctx.db, project_id or "")
    row = {**limits, **{f"{resource} used": amount for resource, amount in used.items()}}
    return Answer({"limits": {"rate": [], "absolute": ctx.render("limits", row)}})
