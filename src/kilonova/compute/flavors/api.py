"""Routes of flavors."""

from __future__ import annotations

from msgspec import structs

from kilonova import store
from kilonova.compute.api import api
from kilonova.compute.flavors import access, extra_specs, model, schemas, views
from kilonova.compute.flavors.lookup import get_locked, get_visible, not_found
from kilonova.compute.flavors.model import Flavor
from kilonova.http import Context, Response
from kilonova.http.errors import Conflict
from kilonova.http.is_public import is_public_filter
from kilonova.http.pagination import marker_not_found, next_link, page_limit
from kilonova.http.parameter_types import is_true
from kilonova.ids import new_id

__all__ = ["access", "extra_specs", "views"]

RULE = "os_compute_api:os-flavor-manage:"
ONE = "/flavors/{flavor_id}"
SHOWS = ("flavor", "flavor", False)


@api.route("GET", "/flavors", authenticated=True, query=schemas.LIST, shows=("flavors", "flavor summary", True))
async def index(ctx: Context) -> Response:
    """List flavors."""
    return await _list(ctx, "/flavors", "flavor summary")


@api.route("GET", "/flavors/detail", authenticated=True, query=schemas.LIST, shows=("flavors", "flavor", True))
async def detail(ctx: Context) -> Response:
    """List flavors with details."""
    return await _list(ctx, "/flavors/detail", "flavor")


@api.route("GET", ONE, authenticated=True, query={}, shows=SHOWS)
async def show(ctx: Context, flavor_id: str) -> Response:
    """Show a flavor."""
    return Response({"flavor": ctx.render("flavor", await get_visible(ctx, flavor_id))})


@api.route("POST", "/flavors", policy=RULE + "create", body=schemas.CREATE, query={}, shows=SHOWS)
async def create(ctx: Context) -> Response:
    """Create a flavor."""
    body = ctx.body["flavor"]
    flavor_id = new_id() if body.get("id") is None else str(body["id"])
    try:
        async with ctx.db.transaction() as tx:
            conflict = await model.find_conflict(tx, flavor_id, body["name"])
            if conflict:
                raise Conflict(f"Flavor with {conflict} already exists.")
            flavor = await model.create(
                tx,
                flavor_id=flavor_id,
                name=body["name"],
                description=body.get("description"),
                vcpus=int(body["vcpus"]),
                ram=int(body["ram"]),
                disk=int(body["disk"]),
                ephemeral=int(body.get("OS-FLV-EXT-DATA:ephemeral", 0)),
                swap=int(body.get("swap", 0)),
                rxtx_factor=float(body.get("rxtx_factor", 1)),
                is_public=is_true(body.get("os-flavor-access:is_public", True)),
            )
    except store.Conflict:
        raise Conflict(f"Flavor with ID {flavor_id} or name {body['name']} already exists.") from None
    return Response({"flavor": ctx.render("flavor", flavor)})


@api.route("PUT", ONE, policy=RULE + "update", body=schemas.UPDATE, query={}, shows=SHOWS)
async def update(ctx: Context, flavor_id: str) -> Response:
    """Change a flavor's description."""
    description = ctx.body["flavor"]["description"]
    async with ctx.db.transaction() as tx:
        flavor = await get_locked(tx, flavor_id)
        await model.set_description(tx, flavor, description)
    return Response({"flavor": ctx.render("flavor", structs.replace(flavor, description=description))})


@api.route("DELETE", ONE, policy=RULE + "delete", query={}, status=202)
async def delete(ctx: Context, flavor_id: str) -> None:
    """Delete a flavor; servers keep their own copy."""
    async with ctx.db.transaction() as tx:
        if not await model.delete(tx, flavor_id):
            raise not_found(flavor_id)


async def _list(ctx: Context, path: str, view: str) -> Response:
    limit = page_limit(ctx)
    flavors = await model.page(
        ctx.db,
        ctx.token,
        is_public=is_public_filter(ctx),
        min_ram=int(ctx.query_one("minRam") or 0),
        min_disk=int(ctx.query_one("minDisk") or 0),
        name=ctx.query_one("name"),
        order=schemas.SORT_KEYS[ctx.query_one("sort_key") or "flavorid"],
        descending=ctx.query_one("sort_dir") == "desc",
        marker=await _marker(ctx),
        limit=limit,
    )
    shown: dict[str, object] = {"flavors": await ctx.render_all(view, flavors)}
    links = next_link(ctx, path, flavors[-1].flavor_id, len(flavors) == limit) if flavors else []
    if links:
        shown["flavors_links"] = links
    return Response(shown)


async def _marker(ctx: Context) -> Flavor | None:
    flavor_id = ctx.query_one("marker")
    if flavor_id is None:
        return None
    flavor = await model.get(ctx.db, flavor_id, ctx.token)
    if flavor is None:
        raise marker_not_found(flavor_id)
    return flavor
