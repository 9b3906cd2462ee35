"""Routes of messages, which say why something failed."""

from __future__ import annotations

from typing import Any

from kilonova.http import Answer, Context
from kilonova.http.pagination import next_link
from kilonova.volume import paging
from kilonova.volume.api import api
from kilonova.volume.messages import listing, model, views

__all__ = ["views"]

PATH = "/messages"
ONE = PATH + "/{message_id}"
PAGED = "messages are filtered, sorted and paged"


@api.route("GET", PATH, policy=model.LIST, query=paging.QUERY, shows=("messages", "message", True))
async def index(ctx: Context) -> Answer:
    """List messages."""
    rows, full = await listing.messages(ctx) if ctx.behaves(PAGED) else (await listing.all_of_project(ctx), False)
    shown: dict[str, Any] = {"messages": [ctx.render("message", row) for row in rows]}
    if full:
        shown["messages_links"] = next_link(ctx, PATH, rows[-1]["id"], full)
    return Answer(shown)


@api.route("GET", ONE, checks=[model.SHOW], query={}, shows=("message", "message", False))
async def show(ctx: Context, message_id: str) -> Answer:
    """Show a message."""
    return Answer({"message": ctx.render("message", await model.find(ctx, ctx.db, message_id, rule=model.SHOW))})


@api.route("DELETE", ONE, checks=[model.DELETE], query={}, status=204)
async def delete(ctx: Context, message_id: str) -> None:
    """Delete a message."""
    async with ctx.db.transaction() as tx:
        row = await model.find(ctx, tx, message_id, rule=model.DELETE)
        if not await model.delete(tx, row["id"]):
            raise model.missing(message_id)
