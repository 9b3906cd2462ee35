"""Routes of the metadata of a server."""

from __future__ import annotations

from kilonova.compute.api import api
from kilonova.compute.operations import update_metadata
from kilonova.compute.quotas.source import Source, find_source
from kilonova.compute.servers import action_checks, create, model
from kilonova.compute.servers.server import Server
from kilonova.http import Context, Response
from kilonova.http.errors import BadRequest, NotFound
from kilonova.http.parameter_types import METADATA, Schema, closed_object
from kilonova.store import Transaction

RULE = "os_compute_api:server-metadata:"
PATH = "/servers/{server_id}/metadata"
ITEM_PATH = PATH + "/{key}"
Metadata = dict[str, str]
ALL_SCHEMA: Schema = closed_object({"metadata": METADATA}, ["metadata"])
ITEM_SCHEMA: Schema = closed_object({"meta": {**METADATA, "minProperties": 1, "maxProperties": 1}}, ["meta"])


@api.route("GET", PATH, checks=[RULE + "index"], query={})
async def index(ctx: Context, server_id: str) -> Response:
    """Show the metadata of a server."""
    server = await model.find(ctx, ctx.db, server_id, rule=RULE + "index")
    return Response({"metadata": server.metadata})


@api.route("POST", PATH, checks=[RULE + "create"], body=ALL_SCHEMA, query={})
async def add(ctx: Context, server_id: str) -> Response:
    """Add to the metadata of a server, and change it."""
    source = await find_source(ctx.services, ctx.token.project_id)
    async with ctx.db.transaction() as tx:
        server = await _lock_ready_server(ctx, tx, server_id, "create")
        metadata = server.metadata | ctx.body["metadata"]
        await _write(ctx, tx, source, server, metadata)
    return Response({"metadata": metadata})


@api.route("PUT", PATH, checks=[RULE + "update_all"], body=ALL_SCHEMA, query={})
async def replace(ctx: Context, server_id: str) -> Response:
    """Replace all the metadata of a server."""
    metadata: Metadata = ctx.body["metadata"]
    source = await find_source(ctx.services, ctx.token.project_id)
    async with ctx.db.transaction() as tx:
        await _write(ctx, tx, source, await _lock_ready_server(ctx, tx, server_id, "update_all"), metadata)
    return Response({"metadata": metadata})


@api.route("GET", ITEM_PATH, checks=[RULE + "show"], query={})
async def show(ctx: Context, server_id: str, key: str) -> Response:
    """Show one item of a server's metadata."""
    metadata = (await model.find(ctx, ctx.db, server_id, rule=RULE + "show")).metadata
    _check_known(metadata, key)
    return Response({"meta": {key: metadata[key]}})


@api.route("PUT", ITEM_PATH, checks=[RULE + "update"], body=ITEM_SCHEMA, query={})
async def update(ctx: Context, server_id: str, key: str) -> Response:
    """Write one item of a server's metadata."""
    item: Metadata = ctx.body["meta"]
    if key not in item:
        raise BadRequest("Request body and URI mismatch")
    source = await find_source(ctx.services, ctx.token.project_id)
    async with ctx.db.transaction() as tx:
        server = await _lock_ready_server(ctx, tx, server_id, "update")
        await _write(ctx, tx, source, server, server.metadata | item)
    return Response({"meta": item})


@api.route("DELETE", ITEM_PATH, checks=[RULE + "delete"], query={}, status=204)
async def delete(ctx: Context, server_id: str, key: str) -> Response:
    """Delete one item of a server's metadata."""
    source = await find_source(ctx.services, ctx.token.project_id)
    async with ctx.db.transaction() as tx:
        server = await _lock_ready_server(ctx, tx, server_id, "delete")
        _check_known(server.metadata, key)
        await _write(ctx, tx, source, server, {name: value for name, value in server.metadata.items() if name != key})
    return Response()


def _check_known(metadata: Metadata, key: str) -> None:
    if key not in metadata:
        raise NotFound("Metadata item was not found")


async def _lock_ready_server(ctx: Context, tx: Transaction, server_id: str, rule: str) -> Server:
    return await action_checks.find_unlocked(ctx, tx, server_id, rule=RULE + rule, transition="metadata")


async def _write(ctx: Context, tx: Transaction, source: Source, server: Server, metadata: Metadata) -> None:
    """Write the server, and begin the operation that updates the guest when its host responds."""
    if metadata == server.metadata:
        return
    if metadata:
        await create.check_metadata_within(ctx, tx, source, metadata)
    await model.set_metadata(tx, server.id, metadata)
    await update_metadata.begin_update(ctx, tx, server)
