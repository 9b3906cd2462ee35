"""Routes of snapshot metadata."""

from __future__ import annotations

from kilonova.http import Context, Response
from kilonova.http.errors import BadRequest, NotFound
from kilonova.volume.api import api
from kilonova.volume.snapshots import model, schemas

METADATA = "/snapshots/{snapshot_id}/metadata"
ITEM = METADATA + "/{key}"
GET, UPDATE = "volume:get_snapshot_metadata", "volume:update_snapshot_metadata"
DELETE = "volume:delete_snapshot_metadata"


@api.route("GET", METADATA, checks=[GET], query={})
async def index(ctx: Context, snapshot_id: str) -> Response:
    """Show the metadata of a snapshot."""
    await model.find(ctx, ctx.db, snapshot_id, rule=GET)
    return Response({"metadata": await model.metadata_of(ctx.db, snapshot_id)})


@api.route("POST", METADATA, checks=[UPDATE], body=schemas.METADATA_BODY, query={})
async def create(ctx: Context, snapshot_id: str) -> Response:
    """Create or update metadata of a snapshot."""
    async with ctx.db.transaction() as tx:
        await model.find(ctx, tx, snapshot_id, rule=UPDATE, lock=True)
        await model.set_metadata(tx, snapshot_id, ctx.body["metadata"])
        return Response({"metadata": await model.metadata_of(tx, snapshot_id)})


@api.route("PUT", METADATA, checks=[UPDATE], body=schemas.METADATA_BODY, query={})
async def replace(ctx: Context, snapshot_id: str) -> Response:
    """Replace the metadata of a snapshot."""
    async with ctx.db.transaction() as tx:
        await model.find(ctx, tx, snapshot_id, rule=UPDATE, lock=True)
        await model.replace_metadata(tx, snapshot_id, ctx.body["metadata"])
    return Response({"metadata": ctx.body["metadata"]})


@api.route("GET", ITEM, checks=[GET], query={})
async def show(ctx: Context, snapshot_id: str, key: str) -> Response:
    """Show a metadata item of a snapshot."""
    await model.find(ctx, ctx.db, snapshot_id, rule=GET)
    found = await model.metadata_of(ctx.db, snapshot_id)
    if key not in found:
        raise _not_found(snapshot_id, key)
    return Response({"meta": {key: found[key]}})


@api.route("PUT", ITEM, checks=[UPDATE], body=schemas.ITEM_BODY, query={})
async def update(ctx: Context, snapshot_id: str, key: str) -> Response:
    """Set a metadata item of a snapshot."""
    if key not in ctx.body["meta"]:
        raise BadRequest("Request body and URI mismatch")
    async with ctx.db.transaction() as tx:
        await model.find(ctx, tx, snapshot_id, rule=UPDATE, lock=True)
        await model.set_metadata(tx, snapshot_id, ctx.body["meta"])
    return Response({"meta": ctx.body["meta"]})


@api.route("DELETE", ITEM, checks=[DELETE], query={})
async def delete(ctx: Context, snapshot_id: str, key: str) -> None:
    """Delete a metadata item of a snapshot."""
    async with ctx.db.transaction() as tx:
        await model.find(ctx, tx, snapshot_id, rule=DELETE, lock=True)
        if not await model.delete_metadata(tx, snapshot_id, key):
            raise _not_found(snapshot_id, key)


def _not_found(snapshot_id: str, key: str) -> NotFound:
    return NotFound(f"Snapshot {snapshot_id} has no metadata with key {key}.")
