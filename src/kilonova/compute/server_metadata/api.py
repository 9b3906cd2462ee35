"""Routes of the metadata of a server."""

from __future__ import annotations

import orjson

from kilonova.compute.api import api
from kilonova.compute.operations import tell_guest
from kilonova.compute.server_metadata import schemas
from kilonova.compute.servers import acting, create, model, states
from kilonova.http import Answer, Context
from kilonova.http.errors import BadRequest, NotFound
from kilonova.store import Row, Transaction

RULE = "os_compute_api:server-metadata:"
METADATA = "/servers/{server_id}/metadata"
ITEM = METADATA + "/{key}"
Metadata = dict[str, str]


@api.route("GET", METADATA, checks=[RULE + "index"], query={})
async def index(ctx: Context, server_id: str) -> Answer:
    """Show the metadata of a server."""
    row = await model.find(ctx, ctx.db, server_id, rule=RULE + "index")
    return Answer({"metadata": _of(row)})


@api.route("POST", METADATA, checks=[RULE + "create"], body=schemas.ALL, query={})
async def add(ctx: Context, server_id: str) -> Answer:
    """Add to the metadata of a server, and change it."""
    async with ctx.db.transaction() as tx:
        row = await _ready(ctx, tx, server_id, "create")
        metadata = _of(row) | ctx.body["metadata"]
        await _write(ctx, tx, row, metadata)
    return Answer({"metadata": metadata})


@api.route("PUT", METADATA, checks=[RULE + "update_all"], body=schemas.ALL, query={})
async def replace(ctx: Context, server_id: str) -> Answer:
    """Replace all the metadata of a server."""
    metadata: Metadata = ctx.body["metadata"]
    async with ctx.db.transaction() as tx:
        await _write(ctx, tx, await _ready(ctx, tx, server_id, "update_all"), metadata)
    return Answer({"metadata": metadata})


@api.route("GET", ITEM, checks=[RULE + "show"], query={})
async def show(ctx: Context, server_id: str, key: str) -> Answer:
    """Show one item of a server's metadata."""
    metadata = _of(await model.find(ctx, ctx.db, server_id, rule=RULE + "show"))
    _check_known(metadata, key)
    return Answer({"meta": {key: metadata[key]}})


@api.route("PUT", ITEM, checks=[RULE + "update"], body=schemas.ITEM, query={})
async def update(ctx: Context, server_id: str, key: str) -> Answer:
    """Write one item of a server's metadata."""
    item: Metadata = ctx.body["meta"]
    if key not in item:
        raise BadRequest("Request body and URI mismatch")
    async with ctx.db.transaction() as tx:
        row = await _ready(ctx, tx, server_id, "update")
        await _write(ctx, tx, row, _of(row) | item)
    return Answer({"meta": item})


@api.route("DELETE", ITEM, checks=[RULE + "delete"], query={}, status=204)
async def delete(ctx: Context, server_id: str, key: str) -> Answer:
    """Delete one item of a server's metadata."""
    async with ctx.db.transaction() as tx:
        row = await _ready(ctx, tx, server_id, "delete")
        metadata = _of(row)
        _check_known(metadata, key)
        del metadata[key]
        await _write(ctx, tx, row, metadata)
    return Answer()


def _of(row: Row) -> Metadata:
    metadata: Metadata = orjson.loads(row["metadata"])
    return metadata


def _check_known(metadata: Metadata, key: str) -> None:
    if key not in metadata:
        raise NotFound("Metadata item was not found")


async def _ready(ctx: Context, tx: Transaction, server_id: str, rule: str) -> Row:
    row = await model.find(ctx, tx, server_id, rule=RULE + rule, lock=True)
    acting.check_unlocked(ctx, row)
    await acting.check_state(tx, row, states.TRANSITIONS["metadata"])
    return row


async def _write(ctx: Context, tx: Transaction, row: Row, metadata: Metadata) -> None:
    """The record is what counts; the guest is told of it as soon as its host listens."""
    if metadata == _of(row):
        return
    await create.check_metadata(ctx, metadata, tx)
    await tx.execute(
        "UPDATE servers SET metadata = $2, updated_at = $3 WHERE id = $1",
        row["id"],
        orjson.dumps(metadata).decode(),
        ctx.now,
    )
    await tell_guest.begin_telling(ctx, tx, row)
