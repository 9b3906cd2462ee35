"""Lists that the database filters, sorts, pages and counts."""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from kilonova.http import Context
from kilonova.http.pagination import limit_of
from kilonova.store import Reader, Row
from kilonova.store.conditions import Conditions
from kilonova.store.paging import Page
from kilonova.volume import filters

Filters = Mapping[str, filters.Filter]


class Find(Protocol):
    """The row of this id, if the caller may see it."""

    def __call__(self, ctx: Context, reader: Reader, ident: str, /, *, rule: str) -> Awaitable[Row]: ...


@dataclass(frozen=True, kw_only=True)
class Listing:
    table: str
    columns: str = "*"
    show: str
    """The rule by which things are seen, those of all projects as well."""
    find: Find
    sort: Mapping[str, str]
    """The column of each key to sort by."""
    nullable: Collection[str] = ()
    offered: Collection[str]
    """The filters that are for everybody."""

    def is_everywhere(self, ctx: Context) -> bool:
        """Whether things of all projects are listed."""
        return filters.everywhere(ctx, self.show)

    def conditions(self, ctx: Context, known: Filters) -> Conditions:
        """What the query asks for, of what the caller may see."""
        conditions = Conditions()
        if not self.is_everywhere(ctx):
            conditions.add("project_id = ?", ctx.token.project_id or "")
        filters.add(ctx, conditions, known, self.offered)
        return conditions

    async def page(self, ctx: Context, known: Filters) -> tuple[list[Row], bool]:
        """A page of rows, and whether it was full."""
        conditions = self.conditions(ctx, known)
        limit = limit_of(ctx)
        if limit == 0:
            return [], False
        order = filters.order(ctx, self.sort, self.nullable)
        page = Page(order, marker=await self._marker(ctx), limit=limit, first_argument=len(conditions.arguments) + 1)
        rows = await ctx.db.fetch(
            f"SELECT {self.columns} FROM {self.table} WHERE {conditions.where()} AND {page.where} {page.order}"
            f" OFFSET {int(ctx.query_one('offset') or 0)}",
            *conditions.arguments,
            *page.arguments,
        )
        return rows, len(rows) == limit

    async def count(self, ctx: Context, known: Filters) -> int:
        """How many there are on all pages."""
        conditions = self.conditions(ctx, known)
        sql = f"SELECT COUNT(*) FROM {self.table} WHERE {conditions.where()}"
        return int(await ctx.db.fetch_value(sql, *conditions.arguments))

    async def _marker(self, ctx: Context) -> Row | None:
        marker = ctx.query_one("marker")
        return None if marker is None else await self.find(ctx, ctx.db, marker, rule=self.show)
