"""Routes of who may use a private flavor."""

from __future__ import annotations

from kilonova.compute.api import api
from kilonova.compute.flavors import model, schemas
from kilonova.compute.flavors.lookup import locked, visible
from kilonova.http import Answer, Context
from kilonova.http.errors import Conflict, NotFound
from kilonova.store import Reader, Row

ACTION = "/flavors/{flavor_id}/action"
PUBLIC_REFUSED = "access cannot be added to a public flavor"


@api.route("GET", "/flavors/{flavor_id}/os-flavor-access", policy="os_compute_api:os-flavor-access", query={})
async def index(ctx: Context, flavor_id: str) -> Answer:
    """List the projects that may use a private flavor."""
    row = await visible(ctx, flavor_id)
    if row["is_public"]:
        raise NotFound("Access list not available for public flavors.")
    return await _shown(ctx.db, row)


@api.action("addTenantAccess", ACTION, body=schemas.TENANT, policy="os_compute_api:os-flavor-access:add_tenant_access")
async def add(ctx: Context, flavor_id: str) -> Answer:
    """Let a project use a private flavor."""
    project = ctx.body["addTenantAccess"]["tenant"]
    async with ctx.db.transaction() as tx:
        row = await locked(tx, flavor_id)
        if row["is_public"] and ctx.behaves(PUBLIC_REFUSED):
            raise Conflict("Can not add access to a public flavor.")
        if not await model.grant(tx, row, project):
            raise Conflict(f"Flavor access already exists for flavor {flavor_id} and project {project} combination.")
        return await _shown(tx, row)


@api.action(
    "removeTenantAccess", ACTION, body=schemas.TENANT, policy="os_compute_api:os-flavor-access:remove_tenant_access"
)
async def remove(ctx: Context, flavor_id: str) -> Answer:
    """Stop a project from using a private flavor."""
    project = ctx.body["removeTenantAccess"]["tenant"]
    async with ctx.db.transaction() as tx:
        row = await locked(tx, flavor_id)
        if not await model.revoke(tx, row, project):
            raise NotFound(f"Flavor access not found for {flavor_id} / {project} combination.")
        return await _shown(tx, row)


async def _shown(reader: Reader, row: Row) -> Answer:
    projects = await model.access(reader, row)
    return Answer({"flavor_access": [{"flavor_id": row["flavor_id"], "tenant_id": project} for project in projects]})
