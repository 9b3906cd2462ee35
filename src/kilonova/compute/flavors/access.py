"""Routes of flavor access: the projects that may use a private flavor."""

from __future__ import annotations

from kilonova.compute.api import api
from kilonova.compute.flavors import model, schemas
from kilonova.compute.flavors.lookup import get_locked, get_visible
from kilonova.http import Context, Response
from kilonova.http.errors import Conflict, NotFound
from kilonova.store import Reader, Row

ACTION = "/flavors/{flavor_id}/action"
PUBLIC_REFUSED = "access cannot be added to a public flavor"


@api.route("GET", "/flavors/{flavor_id}/os-flavor-access", policy="os_compute_api:os-flavor-access", query={})
async def index(ctx: Context, flavor_id: str) -> Response:
    """List the projects that may use a private flavor."""
    row = await get_visible(ctx, flavor_id)
    if row["is_public"]:
        raise NotFound("Access list not available for public flavors.")
    return await _shown(ctx.db, row)


@api.action("addTenantAccess", ACTION, body=schemas.TENANT, policy="os_compute_api:os-flavor-access:add_tenant_access")
async def add(ctx: Context, flavor_id: str) -> Response:
    """Let a project use a private flavor."""
    project = ctx.body["addTenantAccess"]["tenant"]
    async with ctx.db.transaction() as tx:
        row = await get_locked(tx, flavor_id)
        if row["is_public"] and ctx.has_behaviour(PUBLIC_REFUSED):
            raise Conflict("Can not add access to a public flavor.")
        if not await model.ACCESS.grant(tx, row, project):
            raise Conflict(f"Flavor access already exists for flavor {flavor_id} and project {project} combination.")
        return await _shown(tx, row)


@api.action(
    "removeTenantAccess", ACTION, body=schemas.TENANT, policy="os_compute_api:os-flavor-access:remove_tenant_access"
)
async def remove(ctx: Context, flavor_id: str) -> Response:
    """Stop a project from using a private flavor."""
    project = ctx.body["removeTenantAccess"]["tenant"]
    async with ctx.db.transaction() as tx:
        row = await get_locked(tx, flavor_id)
        if not await model.ACCESS.revoke(tx, row, project):
            raise NotFound(f"Flavor access not found for {flavor_id} / {project} combination.")
        return await _shown(tx, row)


async def _shown(reader: Reader, row: Row) -> Response:
    projects = await model.ACCESS.projects(reader, row)
    return Response({"flavor_access": [{"flavor_id": row["flavor_id"], "tenant_id": project} for project in projects]})
