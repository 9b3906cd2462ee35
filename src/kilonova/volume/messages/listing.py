"""Lists of messages: the filters, and the order of the pages."""

from __future__ import annotations

from kilonova.http import Context
from kilonova.store import Row
from kilonova.store.conditions import Conditions
from kilonova.volume import filters
from kilonova.volume.listing import Listing
from kilonova.volume.messages import model

_FILTERS: dict[str, filters.Filter] = {
    "id": filters.equals("id"),
    "event_id": filters.equals("event_id"),
    "message_level": filters.equals("level"),
    "resource_type": filters.equals("resource_type"),
    "resource_uuid": filters.equals("resource_id"),
    "request_id": filters.equals("request_id"),
    "project_id": filters.equals("project_id"),
}
_SORT = {
    "id": "id",
    "event_id": "event_id",
    "message_level": "level",
    "resource_type": "resource_type",
    "resource_uuid": "resource_id",
    "request_id": "request_id",
    "created_at": "created_at",
    "guaranteed_until": "expires_at",
}


class _Messages(Listing):
    def is_everywhere(self, ctx: Context) -> bool:
        """Also for one who may see those of all projects, and names one: the stock client says no more than that."""
        return super().is_everywhere(ctx) or ("project_id" in ctx.query and filters.sees_all(ctx, self.show))


LISTING = _Messages(
    table="volume_messages", show=model.LIST, find=model.find, sort=_SORT, offered=filters.OFFERED["message"]
)


async def messages(ctx: Context) -> tuple[list[Row], bool]:
    return await LISTING.page(ctx, _FILTERS)


async def all_of_project(ctx: Context) -> list[Row]:
    """As they were listed before anything could be asked for: all of them, the newest first."""
    conditions = Conditions()
    conditions.add("project_id = ?", ctx.token.project_id or "")
    return await ctx.db.fetch(
        f"SELECT * FROM volume_messages WHERE {conditions.where()} ORDER BY created_at DESC, id DESC",
        *conditions.arguments,
    )
