"""Routes of extra specs of volume types."""

from __future__ import annotations

from msgspec import structs

from kilonova.http import Context, Response
from kilonova.http.errors import BadRequest, NotFound
from kilonova.volume.api import api
from kilonova.volume.types import model, schemas, views
from kilonova.volume.types.lookup import get_locked, get_visible

ALL = "/types/{type_id}/extra_specs"
ONE = "/types/{type_id}/extra_specs/{key}"
RULE = "volume_extension:types_extra_specs:"


@api.route("GET", ALL, policy=RULE + "index")
async def index(ctx: Context, type_id: str) -> Response:
    """List the extra specs of a volume type."""
    return Response({"extra_specs": views.specs(await get_visible(ctx, type_id), ctx)})


@api.route("POST", ALL, policy=RULE + "create", body=schemas.CREATE_SPECS, query={})
async def create(ctx: Context, type_id: str) -> Response:
    """Create or update extra specs of a volume type."""
    given = ctx.body["extra_specs"]
    await _update(ctx, type_id, given)
    return Response({"extra_specs": given})


@api.route("GET", ONE, policy=RULE + "show", query={})
async def show(ctx: Context, type_id: str, key: str) -> Response:
    """Show an extra spec of a volume type."""
    found = views.specs(await get_visible(ctx, type_id), ctx)
    if key not in found:
        raise _not_found(type_id, key)
    return Response({key: found[key]})


@api.route("PUT", ONE, policy=RULE + "update", body=schemas.UPDATE_SPEC, query={})
async def update(ctx: Context, type_id: str, key: str) -> Response:
    """Update an extra spec of a volume type."""
    if key not in ctx.body:
        raise BadRequest("Request body and URI mismatch")
    await _update(ctx, type_id, ctx.body)
    return Response(ctx.body)


@api.route("DELETE", ONE, policy=RULE + "delete", query={}, status=202)
async def delete(ctx: Context, type_id: str, key: str) -> None:
    """Delete an extra spec of a volume type."""
    async with ctx.db.transaction() as tx:
        volume_type = await get_locked(tx, type_id)
        if key not in volume_type.extra_specs:
            raise _not_found(type_id, key)
        left = {name: value for name, value in volume_type.extra_specs.items() if name != key}
        await model.write(tx, structs.replace(volume_type, extra_specs=left, updated_at=ctx.now))


async def _update(ctx: Context, type_id: str, given: dict[str, str | None]) -> None:
    async with ctx.db.transaction() as tx:
        volume_type = await get_locked(tx, type_id)
        specs = volume_type.extra_specs | given
        await model.write(tx, structs.replace(volume_type, extra_specs=specs, updated_at=ctx.now))


def _not_found(type_id: str, key: str) -> NotFound:
    return NotFound(f"Volume Type {type_id} has no extra specs with key {key}.")
