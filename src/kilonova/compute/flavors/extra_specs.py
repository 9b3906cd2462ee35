"""Routes of a flavor's extra specs."""

from __future__ import annotations

from kilonova.compute.api import api
from kilonova.compute.flavors import extra_spec_validation, model, schemas
from kilonova.compute.flavors.lookup import get_locked, get_visible
from kilonova.http import Context, Response
from kilonova.http.errors import BadRequest, NotFound

ALL = "/flavors/{flavor_id}/os-extra_specs"
ONE = "/flavors/{flavor_id}/os-extra_specs/{key}"
VALIDATED = api.behaviour("extra specs of known namespaces are validated")


@api.route("GET", ALL, policy="os_compute_api:os-flavor-extra-specs:index", query={})
async def index(ctx: Context, flavor_id: str) -> Response:
    """List the extra specs of a flavor."""
    flavor = await get_visible(ctx, flavor_id)
    return Response({"extra_specs": flavor.extra_specs})


@api.route("POST", ALL, policy="os_compute_api:os-flavor-extra-specs:create", body=schemas.CREATE_SPECS, query={})
async def create(ctx: Context, flavor_id: str) -> Response:
    """Add extra specs to a flavor, or change them."""
    given = _checked(ctx, ctx.body["extra_specs"])
    async with ctx.db.transaction() as tx:
        flavor = await get_locked(tx, flavor_id)
        await model.write_specs(tx, flavor, {**flavor.extra_specs, **given})
    return Response({"extra_specs": given})


@api.route("GET", ONE, policy="os_compute_api:os-flavor-extra-specs:show", query={})
async def show(ctx: Context, flavor_id: str, key: str) -> Response:
    """Show an extra spec of a flavor."""
    flavor = await get_visible(ctx, flavor_id)
    if key not in flavor.extra_specs:
        raise _unknown(flavor_id, key)
    return Response({key: flavor.extra_specs[key]})


@api.route("PUT", ONE, policy="os_compute_api:os-flavor-extra-specs:update", body=schemas.UPDATE_SPEC, query={})
async def update(ctx: Context, flavor_id: str, key: str) -> Response:
    """Change an extra spec of a flavor."""
    if key not in ctx.body:
        raise BadRequest("Request body and URI mismatch")
    given = _checked(ctx, ctx.body)
    async with ctx.db.transaction() as tx:
        flavor = await get_locked(tx, flavor_id)
        await model.write_specs(tx, flavor, {**flavor.extra_specs, **given})
    return Response(given)


@api.route("DELETE", ONE, policy="os_compute_api:os-flavor-extra-specs:delete", query={})
async def delete(ctx: Context, flavor_id: str, key: str) -> None:
    """Delete an extra spec of a flavor."""
    async with ctx.db.transaction() as tx:
        flavor = await get_locked(tx, flavor_id)
        if key not in flavor.extra_specs:
            raise _unknown(flavor_id, key)
        kept = {name: value for name, value in flavor.extra_specs.items() if name != key}
        await model.write_specs(tx, flavor, kept)


def _checked(ctx: Context, given: dict[str, object]) -> dict[str, str]:
    specs = {key: str(value) for key, value in given.items()}
    if ctx.has_behaviour(VALIDATED):
        extra_spec_validation.check(specs)
    return specs


def _unknown(flavor_id: str, key: str) -> NotFound:
    return NotFound(f"Flavor {flavor_id} has no extra specs with key {key}.")
