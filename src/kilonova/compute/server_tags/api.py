"""Routes of the tags of a server."""

from __future__ import annotations

from urllib.parse import quote

from kilonova.compute.api import api
from kilonova.compute.server_tags import model as tags
from kilonova.compute.servers import action_checks, model
from kilonova.compute.servers.server import Server
from kilonova.http import Context, Response
from kilonova.http.errors import BadRequest, NotFound
from kilonova.http.parameter_types import closed_object
from kilonova.http.schema import Validator
from kilonova.store import Transaction

RULE = "os_compute_api:os-server-tags:"
TAGS = "/servers/{server_id}/tags"
TAG = TAGS + "/{tag}"
CREATED, KNOWN = 201, 204
_REPLACE = closed_object({"tags": tags.TAGS_SCHEMA}, ["tags"])
_TAG_VALIDATOR = Validator({"type": "object", "properties": {"tag": tags.TAG_SCHEMA}})


@api.route("GET", TAGS, checks=[RULE + "index"], query={})
async def index(ctx: Context, server_id: str) -> Response:
    """List the tags of a server."""
    await model.find(ctx, ctx.db, server_id, rule=RULE + "index")
    return Response({"tags": await tags.of_server(ctx.db, server_id)})


@api.route("PUT", TAGS, checks=[RULE + "update_all"], body=_REPLACE, query={})
async def replace(ctx: Context, server_id: str) -> Response:
    """Replace all tags of a server."""
    new_tags: list[str] = ctx.body["tags"]
    async with ctx.db.transaction() as tx:
        await _lock_ready_server(ctx, tx, server_id, "update_all")
        await tags.clear(tx, server_id)
        await tags.add(tx, server_id, new_tags)
        await model.set_change_time(tx, server_id)
    return Response({"tags": sorted(set(new_tags))})


@api.route("DELETE", TAGS, checks=[RULE + "delete_all"], query={}, status=204)
async def clear(ctx: Context, server_id: str) -> Response:
    """Remove all tags of a server."""
    async with ctx.db.transaction() as tx:
        await _lock_ready_server(ctx, tx, server_id, "delete_all")
        await tags.clear(tx, server_id)
        await model.set_change_time(tx, server_id)
    return Response()


@api.route("GET", TAG, checks=[RULE + "show"], query={}, status=204)
async def show(ctx: Context, server_id: str, tag: str) -> Response:
    """Check whether a server has a tag."""
    await model.find(ctx, ctx.db, server_id, rule=RULE + "show")
    if tag not in await tags.of_server(ctx.db, server_id):
        raise _missing(server_id, tag)
    return Response()


@api.route("PUT", TAG, checks=[RULE + "update"], query={}, status=CREATED, other_statuses=[KNOWN])
async def add(ctx: Context, server_id: str, tag: str) -> Response:
    """Add a tag to a server."""
    _TAG_VALIDATOR.check({"tag": tag})
    headers = {"Location": ctx.url(f"/servers/{server_id}/tags/{quote(tag, safe='')}")}
    async with ctx.db.transaction() as tx:
        await _lock_ready_server(ctx, tx, server_id, "update")
        known = await tags.of_server(tx, server_id)
        if tag in known:
            return Response(status=KNOWN, headers=headers)
        if len(known) >= tags.MAX_TAGS:
            raise BadRequest(f"The number of tags exceeded the per-server limit {tags.MAX_TAGS}")
        await tags.add(tx, server_id, [tag])
        await model.set_change_time(tx, server_id)
    return Response(headers=headers)


@api.route("DELETE", TAG, checks=[RULE + "delete"], query={}, status=204)
async def delete(ctx: Context, server_id: str, tag: str) -> Response:
    """Remove a tag from a server."""
    async with ctx.db.transaction() as tx:
        await _lock_ready_server(ctx, tx, server_id, "delete")
        if not await tags.remove(tx, server_id, tag):
            raise _missing(server_id, tag)
        await model.set_change_time(tx, server_id)
    return Response()


def _missing(server_id: str, tag: str) -> NotFound:
    return NotFound(f"Server {server_id} has no tag '{tag}'")


async def _lock_ready_server(ctx: Context, tx: Transaction, server_id: str, rule: str) -> Server:
    return await action_checks.find_in_state(ctx, tx, server_id, rule=RULE + rule, transition="tags")
