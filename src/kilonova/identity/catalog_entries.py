"""What services, endpoints and regions of the catalogue have in common."""

from __future__ import annotations

from typing import ClassVar

from kilonova.http import Context, Response
from kilonova.http.errors import Forbidden
from kilonova.identity.api import Json, list_links
from kilonova.identity.resources import Resource
from kilonova.store import Reader, Row, Transaction


class CatalogEntries(Resource):
    """Registered entries, which are stored, and those of the cloud's own services, which cannot be changed."""

    flags = ()
    order: ClassVar[tuple[str, ...]] = ("id",)

    def own(self, ctx: Context) -> list[Row]:
        """The entries of the cloud's own services."""
        raise NotImplementedError

    def _find_own(self, ctx: Context, item_id: str) -> Row | None:
        return next((row for row in self.own(ctx) if row["id"] == item_id), None)

    async def find(self, ctx: Context, db: Reader, item_id: str) -> Row | None:
        return self._find_own(ctx, item_id) or await super().find(ctx, db, item_id)

    async def get(self, ctx: Context, db: Reader, item_id: str, rule: str | None = None, *, verb: str = "get") -> Row:
        if verb != "get" and self._find_own(ctx, item_id):
            raise Forbidden(
                f"The {self.noun} {item_id} is one of the cloud's own, which come from its configuration: it cannot be "
                "changed or deleted."
            )
        return await super().get(ctx, db, item_id, rule, verb=verb)

    async def lock(self, ctx: Context, tx: Transaction, item_id: str) -> Row:
        return self._find_own(ctx, item_id) or await super().lock(ctx, tx, item_id)

    async def all_rows(self, ctx: Context) -> list[Row]:
        """The own entries, and the registered ones."""
        return [*self.own(ctx), *await ctx.db.fetch(f"SELECT * FROM {self.table} ORDER BY {', '.join(self.order)}")]

    async def index(self, ctx: Context) -> Response:
        """All entries: there are few, so the list has no pages."""
        wanted = {key: values[-1] for key, values in ctx.query.items() if key in self.filters}
        views = [self.view(ctx, row) for row in await self.all_rows(ctx)]
        shown = [view for view in views if all(view.get(key) == value for key, value in wanted.items())]
        return Response({self.plural: shown, "links": list_links(ctx, self.plural)})

    def attributes(self, row: Row) -> Json:
        return {name: row[name] for name in self.columns if name != "name"}
