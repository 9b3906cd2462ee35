"""Routes of the metadata of shares."""

from __future__ import annotations

from kilonova.http import Context, Response
from kilonova.http.errors import BadRequest, NotFound
from kilonova.share.api import api
from kilonova.share.schemas import MAX_METADATA
from kilonova.share.shares import model, schemas

GET, UPDATE, DELETE = "share:get_share_metadata", "share:update_share_metadata", "share:delete_share_metadata"
PATH = "/shares/{share_id}/metadata"
ITEM = PATH + "/{key}"


@api.route("GET", PATH, checks=[GET])
async def index(ctx: Context, share_id: str) -> Response:
    """Show the metadata of a share."""
    return Response({"metadata": (await model.find(ctx, ctx.db, share_id, rule=GET)).metadata})


@api.route("POST", PATH, checks=[UPDATE], body=schemas.METADATA_BODY)
async def add(ctx: Context, share_id: str) -> Response:
    """Add to the metadata of a share."""
    return await _write(ctx, share_id, ctx.body["metadata"], keep=True)


@api.route("PUT", PATH, checks=[UPDATE], body=schemas.METADATA_BODY)
async def replace(ctx: Context, share_id: str) -> Response:
    """Replace the metadata of a share."""
    return await _write(ctx, share_id, ctx.body["metadata"], keep=False)


@api.route("GET", ITEM, checks=[GET])
async def show(ctx: Context, share_id: str, key: str) -> Response:
    """Show a metadata item of a share."""
    metadata = (await model.find(ctx, ctx.db, share_id, rule=GET)).metadata
    if key not in metadata:
        raise _not_found(share_id, key)
    return Response({"meta": {key: metadata[key]}})


@api.route("PUT", ITEM, checks=[UPDATE], body=schemas.ITEM_BODY)
async def change(ctx: Context, share_id: str, key: str) -> Response:
    """Set a metadata item of a share."""
    if key not in ctx.body["meta"]:
        raise BadRequest("Request body and URI mismatch")
    await _write(ctx, share_id, ctx.body["meta"], keep=True)
    return Response({"meta": ctx.body["meta"]})


@api.route("DELETE", ITEM, checks=[DELETE])
async def remove(ctx: Context, share_id: str, key: str) -> None:
    """Delete a metadata item of a share."""
    async with ctx.db.transaction() as tx:
        share = await model.find(ctx, tx, share_id, rule=DELETE, lock=True)
        if key not in share.metadata:
            raise _not_found(share_id, key)
        await model.set_metadata(tx, share_id, {name: value for name, value in share.metadata.items() if name != key})


async def _write(ctx: Context, share_id: str, requested: dict[str, str], *, keep: bool) -> Response:
    async with ctx.db.transaction() as tx:
        share = await model.find(ctx, tx, share_id, rule=UPDATE, lock=True)
        metadata = {**share.metadata, **requested} if keep else requested
        if len(metadata) > MAX_METADATA:
            raise BadRequest(f"metadata: a share has at most {MAX_METADATA} items.")
        await model.set_metadata(tx, share_id, metadata)
    return Response({"metadata": metadata})


def _not_found(share_id: str, key: str) -> NotFound:
    return NotFound(f"Share {share_id} has no metadata with key {key[:255]}.")
