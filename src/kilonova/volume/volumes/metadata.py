"""Routes of volume metadata."""

from __future__ import annotations

import hashlib

import orjson

from kilonova.http import Context, Response
from kilonova.http.errors import BadRequest, HttpError, NotFound
from kilonova.store import Transaction
from kilonova.volume.api import api
from kilonova.volume.volumes import model, schemas

GET, CREATE = "volume:get_volume_metadata", "volume:create_volume_metadata"
UPDATE, DELETE = "volume:update_volume_metadata", "volume:delete_volume_metadata"
PATH = "/volumes/{volume_id}/metadata"
ITEM = PATH + "/{key}"
ETAG = api.behaviour("metadata has an ETag")


@api.route("GET", PATH, checks=[GET])
async def index(ctx: Context, volume_id: str) -> Response:
    """Show the metadata of a volume."""
    await model.find(ctx, ctx.db, volume_id, rule=GET)
    found = (await model.metadata_of(ctx.db, [volume_id])).get(volume_id, {})
    return Response({"metadata": found}, headers={"ETag": _etag(found)} if ctx.has_behaviour(ETAG) else None)


@api.route("POST", PATH, checks=[CREATE], body=schemas.METADATA_BODY)
async def add(ctx: Context, volume_id: str) -> Response:
    """Create or update metadata of a volume."""
    async with ctx.db.transaction() as tx:
        await model.find(ctx, tx, volume_id, rule=CREATE, lock=True)
        await model.set_metadata(tx, volume_id, ctx.body["metadata"])
        return Response({"metadata": await _touch(ctx, tx, volume_id)})


@api.route("PUT", PATH, checks=[UPDATE], body=schemas.METADATA_BODY)
async def replace(ctx: Context, volume_id: str) -> Response:
    """Replace the metadata of a volume."""
    async with ctx.db.transaction() as tx:
        await model.find(ctx, tx, volume_id, rule=UPDATE, lock=True)
        await _check_unchanged(ctx, tx, volume_id)
        await model.replace_metadata(tx, volume_id, ctx.body["metadata"])
        return Response({"metadata": await _touch(ctx, tx, volume_id)})


@api.route("GET", ITEM, checks=[GET])
async def show(ctx: Context, volume_id: str, key: str) -> Response:
    """Show a metadata item of a volume."""
    await model.find(ctx, ctx.db, volume_id, rule=GET)
    found = (await model.metadata_of(ctx.db, [volume_id])).get(volume_id, {})
    if key not in found:
        raise _not_found(volume_id, key)
    return Response({"meta": {key: found[key]}})


@api.route("PUT", ITEM, checks=[UPDATE], body=schemas.META_BODY)
async def change(ctx: Context, volume_id: str, key: str) -> Response:
    """Set a metadata item of a volume."""
    meta = ctx.body["meta"]
    async with ctx.db.transaction() as tx:
        await model.find(ctx, tx, volume_id, rule=UPDATE, lock=True)
        if key not in meta:
            raise BadRequest("Request body and URI mismatch")
        await model.set_metadata(tx, volume_id, meta)
        await _touch(ctx, tx, volume_id)
    return Response({"meta": meta})


@api.route("DELETE", ITEM, checks=[DELETE])
async def remove(ctx: Context, volume_id: str, key: str) -> Response:
    """Delete a metadata item of a volume."""
    async with ctx.db.transaction() as tx:
        await model.find(ctx, tx, volume_id, rule=DELETE, lock=True)
        if not await tx.execute("DELETE FROM volume_metadata WHERE volume_id = $1 AND key = $2", volume_id, key):
            raise _not_found(volume_id, key)
        await _touch(ctx, tx, volume_id)
    return Response()


async def _check_unchanged(ctx: Context, tx: Transaction, volume_id: str) -> None:
    """Refuse (412) a request whose `If-Match` does not match the metadata."""
    expected = ctx.headers.get("if-match", "*").strip()
    if expected != "*" and ctx.has_behaviour(ETAG):
        found = (await model.metadata_of(tx, [volume_id])).get(volume_id, {})
        if _etag(found) not in (tag.strip() for tag in expected.split(",")):
            raise HttpError("The metadata was changed meanwhile: its ETag does not match If-Match.", status=412)


def _etag(metadata: dict[str, str]) -> str:
    return f'"{hashlib.sha256(orjson.dumps(metadata, option=orjson.OPT_SORT_KEYS)).hexdigest()[:32]}"'


async def _touch(ctx: Context, tx: Transaction, volume_id: str) -> dict[str, str]:
    await tx.execute("UPDATE volumes SET updated_at = $2 WHERE id = $1", volume_id, ctx.now)
    return (await model.metadata_of(tx, [volume_id])).get(volume_id, {})


def _not_found(volume_id: str, key: str) -> NotFound:
    return NotFound(f"Volume {volume_id} has no metadata with key {key[:255]}.")
