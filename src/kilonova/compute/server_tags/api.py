"""Routes of the tags of a server."""

from __future__ import annotations

from urllib.parse import quote

from kilonova.compute.api import api
from kilonova.compute.server_tags import model as tags
from kilonova.compute.server_tags import schemas
from kilonova.compute.servers import acting, model, states
from kilonova.http import Answer, Context
from kilonova.http.errors import BadRequest, NotFound
from kilonova.http.schema import Validator
from kilonova.store import Row, Transaction

RULE = "os_compute_api:os-server-tags:"
TAGS = "/servers/{server_id}/tags"
TAG = TAGS + "/{tag}"
CREATED, KNOWN = 201, 204
_NAMED = Validator({"type": "object", "properties": {"tag": schemas.TAG}})


@api.route("GET", TAGS, checks=[RULE + "index"], query={})
async def index(ctx: Context, server_id: str) -> Answer:
    """List the tags of a server."""
    await model.find(ctx, ctx.db, server_id, rule=RULE + "index")
    return Answer({"tags": await tags.of_server(ctx.db, server_id)})


@api.route("PUT", TAGS, checks=[RULE + "update_all"], body=schemas.REPLACE, query={})
async def replace(ctx: Context, server_id: str) -> Answer:
    """Replace all tags of a server."""
    asked: list[str] = ctx.body["tags"]
    async with ctx.db.transaction() as tx:
        await _ready(ctx, tx, server_id, "update_all")
        await tags.clear(tx, server_id)
        await tags.add(tx, server_id, asked)
        await _changed(ctx, tx, server_id)
    return Answer({"tags": sorted(asked)})


@api.route("DELETE", TAGS, checks=[RULE + "delete_all"], query={}, status=204)
async def clear(ctx: Context, server_id: str) -> Answer:
    """Remove all tags of a server."""
    async with ctx.db.transaction() as tx:
        await _ready(ctx, tx, server_id, "delete_all")
        await tags.clear(tx, server_id)
        await _changed(ctx, tx, server_id)
    return Answer()


@api.route("GET", TAG, checks=[RULE + "show"], query={}, status=204)
async def show(ctx: Context, server_id: str, tag: str) -> Answer:
    """Ask whether a server has a tag."""
    await model.find(ctx, ctx.db, server_id, rule=RULE + "show")
    if tag not in await tags.of_server(ctx.db, server_id):
        raise _missing(server_id, tag)
    return Answer()


@api.route("PUT", TAG, checks=[RULE + "update"], query={}, status=CREATED, also=[KNOWN])
async def add(ctx: Context, server_id: str, tag: str) -> Answer:
    """Put a tag on a server."""
    _NAMED.check({"tag": tag})
    there = {"Location": ctx.url(f"/servers/{server_id}/tags/{quote(tag, safe='')}")}
    async with ctx.db.transaction() as tx:
        await _ready(ctx, tx, server_id, "update")
        known = await tags.of_server(tx, server_id)
        if tag in known:
            return Answer(status=KNOWN, headers=there)
        if len(known) >= tags.MOST:
            raise BadRequest(f"The number of tags exceeded the per-server limit {tags.MOST}")
        await tags.add(tx, server_id, [tag])
        await _changed(ctx, tx, server_id)
    return Answer(headers=there)


@api.route("DELETE", TAG, checks=[RULE + "delete"], query={}, status=204)
async def delete(ctx: Context, server_id: str, tag: str) -> Answer:
    """Take a tag off a server."""
    async with ctx.db.transaction() as tx:
        await _ready(ctx, tx, server_id, "delete")
        if not await tags.remove(tx, server_id, tag):
            raise _missing(server_id, tag)
        await _changed(ctx, tx, server_id)
    return Answer()


def _missing(server_id: str, tag: str) -> NotFound:
    return NotFound(f"Server {server_id} has no tag '{tag}'")


async def _ready(ctx: Context, tx: Transaction, server_id: str, rule: str) -> Row:
    row = await model.find(ctx, tx, server_id, rule=RULE + rule, lock=True)
    acting.check_unlocked(ctx, row)
    await acting.check_state(tx, row, states.TRANSITIONS["tags"])
    return row


async def _changed(ctx: Context, tx: Transaction, server_id: str) -> None:
    await tx.execute("UPDATE servers SET updated_at = $2 WHERE id = $1", server_id, ctx.now)
