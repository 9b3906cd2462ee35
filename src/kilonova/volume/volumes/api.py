"""Routes of volumes."""

from __future__ import annotations

from typing import Any

from kilonova.http import Answer, Context
from kilonova.http.api import multi
from kilonova.http.pagination import next_link
from kilonova.http.pieces import BOOLEAN, STRING, is_true
from kilonova.volume import filters
from kilonova.volume.api import api
from kilonova.volume.volumes import create, deleting, listing, model, schemas, views

RULE = "volume:"
FORCED = "deletion may be forced"
__all__ = ["views"]


@api.route("GET", "/volumes", policy=RULE + "get_all", query=schemas.LIST, shows=("volumes", "volume brief", True))
async def index(ctx: Context) -> Answer:
    """List volumes."""
    return await _page(ctx, "/volumes", "volume brief")


@api.route("GET", "/volumes/detail", policy=RULE + "get_all", query=schemas.LIST, shows=("volumes", "volume", True))
async def detail(ctx: Context) -> Answer:
    """List volumes with their details."""
    return await _page(ctx, "/volumes/detail", "volume")


async def _page(ctx: Context, path: str, view: str) -> Answer:
    rows, full = await listing.volumes(ctx)
    if view == "volume":
        await model.dress(ctx.db, rows)
    body: dict[str, Any] = {"volumes": [ctx.render(view, row) for row in rows]}
    if full:
        body["volumes_links"] = next_link(ctx, path, rows[-1]["id"], True)
    if filters.counted(ctx):
        body["count"] = await listing.count(ctx)
    return Answer(body)


@api.route("GET", "/volumes/summary", policy=RULE + "get_all", query=schemas.LIST)
async def summary(ctx: Context) -> Answer:
    """Count volumes, their sizes and what their metadata says."""
    return Answer({"volume-summary": ctx.render("volume summary", await listing.summary(ctx))})


@api.route("GET", "/resource_filters", policy=RULE + "get_all", query={"resource": STRING})
async def resource_filters(ctx: Context) -> Answer:
    """List the filters that everybody may use."""
    wanted = ctx.query_one("resource")
    found = [
        {"resource": resource, "filters": sorted(keys)}
        for resource, keys in filters.OFFERED.items()
        if wanted in (None, resource)
    ]
    return Answer({"resource_filters": found})


@api.route(
    "POST",
    "/volumes",
    policy=RULE + "create",
    body=schemas.CREATE,
    status=202,
    shows=("volume", "new volume", False),
)
async def create_volume(ctx: Context) -> Answer:
    """Create a volume: blank, or of an image, a snapshot or another volume."""
    return Answer({"volume": ctx.render("new volume", await create.create(ctx))})


@api.route("GET", "/volumes/{volume_id}", checks=[RULE + "get"], shows=("volume", "volume", False))
async def show(ctx: Context, volume_id: str) -> Answer:
    """Show a volume."""
    row = await model.find(ctx, ctx.db, volume_id, rule=RULE + "get")
    await model.dress(ctx.db, [row])
    return Answer({"volume": ctx.render("volume", row)})


@api.route(
    "PUT",
    "/volumes/{volume_id}",
    checks=[RULE + "update"],
    body=schemas.UPDATE,
    shows=("volume", "new volume", False),
)
async def update(ctx: Context, volume_id: str) -> Answer:
    """Rename a volume, or change its description or metadata."""
    body = ctx.body["volume"]
    columns = {column: body[key] for key, column in _UPDATE_COLUMNS.items() if key in body}
    columns["updated_at"] = ctx.now
    async with ctx.db.transaction() as tx:
        row = await model.find(ctx, tx, volume_id, rule=RULE + "update", lock=True)
        row.update(columns)
        changes = ", ".join(f"{column} = ${place}" for place, column in enumerate(columns, 2))
        await tx.execute(f"UPDATE volumes SET {changes} WHERE id = $1", volume_id, *columns.values())
        if body.get("metadata") is not None:
            await model.replace_metadata(tx, volume_id, body["metadata"])
        await model.dress(tx, [row])
    return Answer({"volume": ctx.render("new volume", row)})


# The newer name of a field has the last word.
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
async def delete(ctx: Context, volume_id: str) -> Answer:
    """Delete a volume; with `cascade` its snapshots too."""
    force = ctx.behaves(FORCED) and is_true(ctx.query_one("force"))
    async with ctx.db.transaction() as tx:
        row = await model.find(ctx, tx, volume_id, rule=RULE + ("force_delete" if force else "delete"), lock=True)
        await deleting.delete(ctx, tx, row, cascade=is_true(ctx.query_one("cascade")), force=force)
    return Answer()
