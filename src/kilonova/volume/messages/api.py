"""Routes, search and view of messages."""

from __future__ import annotations

from kilonova import clock
from kilonova.http import Context, Field, Response, View, attribute
from kilonova.volume import filters, paging
from kilonova.volume.api import api
from kilonova.volume.messages import model
from kilonova.volume.search import Search

_RENAMED = {"message_level": "level", "resource_uuid": "resource_id"}
_FILTERS = filters.equal_columns("id", "event_id", "resource_type", "request_id", "project_id", **_RENAMED)


class _MessageSearch(Search[model.Message]):
    def includes_all_projects(self, ctx: Context) -> bool:
        """`project_id` implies `all_tenants` for administrators: the stock client sends only `project_id`."""
        return super().includes_all_projects(ctx) or ("project_id" in ctx.query and filters.sees_all(ctx, self.show))


SEARCH = _MessageSearch(
    key="messages",
    record=model.Message,
    show=model.LIST,
    find=model.find,
    sort=filters.columns(
        *("id", "event_id", "resource_type", "request_id", "created_at"), guaranteed_until="expires_at", **_RENAMED
    ),
    filters=lambda ctx: _FILTERS,
    offered=filters.OFFERED["message"],
)


_TEXT = {"type": "string"}

api.view(
    View(
        "message",
        {
            "id": attribute("id", _TEXT),
            "event_id": attribute("event_id", _TEXT),
            "message_level": attribute("level", _TEXT),
            "resource_type": attribute("resource_type", _TEXT),
            "resource_uuid": attribute("resource_id", _TEXT),
            "user_message": attribute("text", _TEXT),
            "request_id": attribute("request_id", _TEXT),
            "created_at": Field(lambda message, ctx: clock.iso_micro(message.created_at), _TEXT),
            "guaranteed_until": Field(lambda message, ctx: clock.iso_micro(message.expires_at), _TEXT),
            "links": Field(lambda message, ctx: ctx.links(f"/messages/{message.id}"), {"type": "array"}),
        },
    )
)


PATH = "/messages"
ONE = PATH + "/{message_id}"
PAGED = api.behaviour("messages are filtered, sorted and paged")


@api.route("GET", PATH, policy=model.LIST, query=paging.QUERY, shows=("messages", "message", True))
async def index(ctx: Context) -> Response:
    """List messages."""
    if ctx.has_behaviour(PAGED):
        return await SEARCH.response(ctx, PATH, "message")
    sql = "SELECT * FROM volume_messages WHERE project_id = $1 ORDER BY created_at DESC, id DESC"
    found = model.Message.decode_all(await ctx.db.fetch(sql, ctx.token.project_id or ""))
    return Response({"messages": await ctx.render_all("message", found)})


@api.route("GET", ONE, checks=[model.SHOW], query={}, shows=("message", "message", False))
async def show(ctx: Context, message_id: str) -> Response:
    """Show a message."""
    return Response({"message": ctx.render("message", await model.find(ctx, ctx.db, message_id, rule=model.SHOW))})


@api.route("DELETE", ONE, checks=[model.DELETE], query={}, status=204)
async def delete(ctx: Context, message_id: str) -> None:
    """Delete a message."""
    async with ctx.db.transaction() as tx:
        message = await model.find(ctx, tx, message_id, rule=model.DELETE)
        if not await model.delete(tx, message.id):
            raise model.not_found(message_id)
