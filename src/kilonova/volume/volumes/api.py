"""Routes of volumes."""

from __future__ import annotations

from msgspec import structs

from kilonova.http import Context, Response
from kilonova.http.api import multi
from kilonova.http.parameter_types import BOOLEAN, STRING, is_true
from kilonova.volume import filters
from kilonova.volume.api import api
from kilonova.volume.volumes import actions, create, delete, metadata, model, schemas, search, views

RULE = "volume:"
FORCED = api.behaviour("volumes can be deleted by force")
__all__ = ["actions", "metadata", "views"]


@api.route("GET", "/volumes", policy=RULE + "get_all", query=schemas.LIST, shows=("volumes", "volume brief", True))
async def index(ctx: Context) -> Response:
    """List volumes."""
    return await search.SEARCH.response(ctx, "/volumes", "volume brief")


@api.route("GET", "/volumes/detail", policy=RULE + "get_all", query=schemas.LIST, shows=("volumes", "volume", True))
async def detail(ctx: Context) -> Response:
    """List volumes with their details."""
    return await search.SEARCH.response(ctx, "/volumes/detail", "volume", model.add_details)


@api.route("GET", "/volumes/summary", policy=RULE + "get_all", query=schemas.LIST)
async def summary(ctx: Context) -> Response:
    """Show the number, the total size and the metadata of volumes."""
    return Response({"volume-summary": ctx.render("volume summary", await search.summary(ctx))})


@api.route("GET", "/resource_filters", policy=RULE + "get_all", query={"resource": STRING})
async def resource_filters(ctx: Context) -> Response:
    """List the filters for all users."""
    name = ctx.query_one("resource")
    found = [
        {"resource": resource, "filters": sorted(keys)}
        for resource, keys in filters.OFFERED.items()
        if name in (None, resource)
    ]
    return Response({"resource_filters": found})


@api.route(
    "POST",
    "/volumes",
    policy=RULE + "create",
    checks=[RULE + "create_from_image", RULE + "multiattach"],
    body=schemas.CREATE,
    status=202,
    shows=("volume", "new volume", False),
)
async def create_volume(ctx: Context) -> Response:
    """Create a volume: blank, or from an image, a snapshot or another volume."""
    return Response({"volume": ctx.render("new volume", await create.create(ctx))})


@api.route("GET", "/volumes/{volume_id}", checks=[RULE + "get"], shows=("volume", "volume", False))
async def show(ctx: Context, volume_id: str) -> Response:
    """Show a volume."""
    volume = await model.find(ctx, ctx.db, volume_id, rule=RULE + "get")
    (shown,) = await model.add_details(ctx.db, [volume])
    return Response({"volume": ctx.render("volume", shown)})


@api.route(
    "PUT", "/volumes/{volume_id}", checks=[RULE + "update"], body=schemas.UPDATE, shows=("volume", "new volume", False)
)
async def update(ctx: Context, volume_id: str) -> Response:
    """Update the name, the description or the metadata of a volume."""
    body = ctx.body["volume"]
    columns = {column: body[key] for key, column in _UPDATE_COLUMNS.items() if key in body}
    columns["updated_at"] = ctx.now
    async with ctx.db.transaction() as tx:
        volume = await model.find(ctx, tx, volume_id, rule=RULE + "update", lock=True)
        changes = ", ".join(f"{column} = ${place}" for place, column in enumerate(columns, 2))
        await tx.execute(f"UPDATE volumes SET {changes} WHERE id = $1", volume_id, *columns.values())
        if body.get("metadata") is not None:
            await model.replace_metadata(tx, volume_id, body["metadata"])
        (shown,) = await model.add_details(tx, [structs.replace(volume, **columns)])
    return Response({"volume": ctx.render("new volume", shown)})


# `name` takes precedence over the older `display_name`.
_UPDATE_COLUMNS = {
    "display_name": "name",
    "display_description": "description",
    "name": "name",
    "description": "description",
}


@api.route(
    "DELETE",
    "/volumes/{volume_id}",
    checks=[RULE + "delete"],
    query={"cascade": BOOLEAN, "force": BOOLEAN, "*": multi(STRING)},
    status=202,
)
async def delete_volume(ctx: Context, volume_id: str) -> Response:
    """Delete a volume, with `cascade` also its snapshots."""
    force = ctx.has_behaviour(FORCED) and is_true(ctx.query_one("force"))
    async with ctx.db.transaction() as tx:
        volume = await model.find(ctx, tx, volume_id, rule=RULE + ("force_delete" if force else "delete"), lock=True)
        await delete.delete(ctx, tx, volume, cascade=is_true(ctx.query_one("cascade")), force=force)
    return Response()
