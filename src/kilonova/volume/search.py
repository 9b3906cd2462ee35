"""Lists of volumes, snapshots, attachments and messages: the database filters, sorts, pages and counts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from kilonova.http import Context, Response
from kilonova.http.pagination import next_link, page_limit
from kilonova.store import Reader, Row
from kilonova.store.conditions import Conditions
from kilonova.store.paging import Page
from kilonova.store.records import Record
from kilonova.volume import filters

Filters = Mapping[str, filters.Filter]
R = TypeVar("R", bound=Record)


class Find(Protocol):
    """Return the record with this id if the caller may see it, else raise."""

    def __call__(self, ctx: Context, reader: Reader, ident: str, /, *, rule: str) -> Awaitable[Record]: ...


@dataclass(frozen=True, kw_only=True)
class Search(Generic[R]):
    key: str
    """The key of the list in responses."""
    record: type[R]
    show: str
    """The policy rule for seeing a row, also rows of other projects."""
    find: Find
    sort: Mapping[str, str]
    """The column of each sort key."""
    nullable: Collection[str] = ()
    filters: Callable[[Context], Filters]
    offered: Collection[str]
    """The filters for all users."""
    counted: bool = False
    """Whether responses can have the number of rows on all pages."""

    def includes_all_projects(self, ctx: Context) -> bool:
        return filters.all_projects(ctx, self.show)

    def conditions(self, ctx: Context) -> Conditions:
        """The conditions of the query, limited to rows that the caller may see."""
        conditions = Conditions()
        if not self.includes_all_projects(ctx):
            conditions.add("project_id = ?", ctx.token.project_id or "")
        filters.add(ctx, conditions, self.filters(ctx), self.offered)
        return conditions

    async def response(
        self,
        ctx: Context,
        path: str,
        view: str,
        add_details: Callable[[Reader, Sequence[R]], Awaitable[Sequence[object]]] | None = None,
    ) -> Response:
        """A page of rows in this view, with the link to the next page."""
        rows, full = await self.page(ctx)
        records = self.record.decode_all(rows)
        shown: Sequence[object] = records if add_details is None else await add_details(ctx.db, records)
        body: dict[str, object] = {self.key: await ctx.render_all(view, shown)}
        if full:
            body[f"{self.key}_links"] = next_link(ctx, path, rows[-1]["id"], full)
        if self.counted and filters.counted(ctx):
            body["count"] = await self.count(ctx)
        return Response(body)

    async def page(self, ctx: Context) -> tuple[list[Row], bool]:
        """A page of rows, and whether it was full."""
        conditions = self.conditions(ctx)
        limit = page_limit(ctx)
        if limit == 0:
            return [], False
        order = filters.order(ctx, self.sort, self.nullable)
        page = Page(order, marker=await self._marker(ctx), limit=limit, first_argument=len(conditions.arguments) + 1)
        rows = await ctx.db.fetch(
            f"SELECT * FROM {self.record.table} WHERE {conditions.where()} AND {page.where} {page.order}"
            f" OFFSET {int(ctx.query_one('offset') or 0)}",
            *conditions.arguments,
            *page.arguments,
        )
        return rows, len(rows) == limit

    async def count(self, ctx: Context) -> int:
        """The number of rows on all pages."""
        conditions = self.conditions(ctx)
        sql = f"SELECT COUNT(*) FROM {self.record.table} WHERE {conditions.where()}"
        return int(await ctx.db.fetch_value(sql, *conditions.arguments))

    async def _marker(self, ctx: Context) -> Row | None:
        marker = ctx.query_one("marker")
        return None if marker is None else (await self.find(ctx, ctx.db, marker, rule=self.show)).encode()
