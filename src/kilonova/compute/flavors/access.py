"""Routes of flavor access: the projects that may use a private flavor."""

from __future__ import annotations

from kilonova.compute.api import api
from kilonova.compute.flavors import model, schemas
from kilonova.compute.flavors.lookup import get_locked, get_visible
from kilonova.compute.flavors.model import Flavor
from kilonova.compute.projects import check_project
from kilonova.http import Context, Response
from kilonova.http.errors import Conflict, NotFound
from kilonova.store import Reader

ACTION = "/flavors/{flavor_id}/action"
PUBLIC_REFUSED = api.behaviour("access cannot be added to a public flavor")


@api.route("GET", "/flavors/{flavor_id}/os-flavor-access", policy="os_compute_api:os-flavor-access", query={})
async def index(ctx: Context, flavor_id: str) -> Response:
    """List the projects that may use a private flavor."""
    flavor = await get_visible(ctx, flavor_id)
    if flavor.is_public:
        raise NotFound("Access list not available for public flavors.")
    return await _shown(ctx.db, flavor)


@api.action("addTenantAccess", ACTION, body=schemas.TENANT, policy="os_compute_api:os-flavor-access:add_tenant_access")
async def add(ctx: Context, flavor_id: str) -> Response:
    """Let a project use a private flavor."""
    project = ctx.body["addTenantAccess"]["tenant"]
    await check_project(ctx, project)
    async with ctx.db.transaction() as tx:
        flavor = await get_locked(tx, flavor_id)
        if flavor.is_public and ctx.has_behaviour(PUBLIC_REFUSED):
            raise Conflict("Can not add access to a public flavor.")
        if not await model.ACCESS.grant(tx, flavor.id, project):
            raise Conflict(f"Flavor access already exists for flavor {flavor_id} and project {project} combination.")
        return await _shown(tx, flavor)


@api.action(
    "removeTenantAccess", ACTION, body=schemas.TENANT, policy="os_compute_api:os-flavor-access:remove_tenant_access"
)
async def remove(ctx: Context, flavor_id: str) -> Response:
    """Stop a project from using a private flavor."""
    project = ctx.body["removeTenantAccess"]["tenant"]
    async with ctx.db.transaction() as tx:
        flavor = await get_locked(tx, flavor_id)
        if not await model.ACCESS.revoke(tx, flavor.id, project):
            raise NotFound(f"Flavor access not found for {flavor_id} / {project} combination.")
        return await _shown(tx, flavor)


async def _shown(reader: Reader, flavor: Flavor) -> Response:
    projects = await model.ACCESS.projects(reader, flavor.id)
    return Response({"flavor_access": [{"flavor_id": flavor.flavor_id, "tenant_id": project} for project in projects]})
