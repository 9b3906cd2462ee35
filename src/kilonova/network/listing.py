"""Lists of network resources: filters, sort keys, pages, and selection of fields."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Generic, NamedTuple, TypeVar
from urllib.parse import urlencode

from kilonova import clock
from kilonova.http import Context, multi
from kilonova.http.errors import BadRequest
from kilonova.http.filter_values import limited
from kilonova.http.loop_yielder import collect
from kilonova.http.schema import Schema
from kilonova.network.authorization import sees_all
from kilonova.network.resources import Resource, pack_tags
from kilonova.network.schemas import LIST_QUERY
from kilonova.store import Row
from kilonova.store.paging import Page, SortKey

# Bounds the time of one request. Lists link to further pages.
MAX_PAGE_SIZE = 1000
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}
_TAG_FILTERS = ("tags", "tags-any", "not-tags", "not-tags-any")

R = TypeVar("R", bound=Resource)


class Attribute(NamedTuple):
    """An attribute that lists can be filtered and sorted by, with its column."""

    column: str
    kind: str = "text"
    nullable: bool = False
    rule: str | None = None
    """The rule that permits to see the attribute: filters must not reveal it either."""


class Query:
    """SQL conditions with their arguments."""

    def __init__(self) -> None:
        self.conditions: list[str] = []
        self.args: list[object] = []

    def arg(self, value: object) -> str:
        self.args.append(value)
        return f"${len(self.args)}"

    def add(self, condition: str) -> None:
        self.conditions.append(condition)


CustomFilter = Callable[[Query, list[str]], None]
STANDARD = {
    "id": Attribute("r.id"),
    "project_id": Attribute("r.project_id"),
    "tenant_id": Attribute("r.project_id"),
    "description": Attribute("r.description"),
    "revision_number": Attribute("r.revision_number", "integer"),
    "created_at": Attribute("r.created_at", "time"),
    "updated_at": Attribute("r.updated_at", "time"),
}


class Listing(Generic[R]):
    """Lists one kind of resource. In SQL conditions its table has the alias `r`."""

    def __init__(
        self,
        kind: type[R],
        plural: str,
        attributes: Mapping[str, Attribute],
        custom_filters: Mapping[str, CustomFilter] | None = None,
    ) -> None:
        self.kind = kind
        self.plural = plural
        self.attributes = {**STANDARD, **attributes}
        self.custom_filters = dict(custom_filters or {})

    @property
    def query_schema(self) -> dict[str, Schema]:
        """The query keys that the list route accepts."""
        filters = [*self.attributes, *self.custom_filters, *_TAG_FILTERS]
        return {**LIST_QUERY, **{name: multi({"type": "string"}) for name in filters}}

    async def fetch_page(self, ctx: Context, query: Query) -> list[R]:
        """The resources of the requested page; `query` restricts them to those that the caller may see."""
        marker = await self._marker(ctx, query)
        self._filter(ctx, query)
        backwards = _is_backwards(ctx)
        page = Page(
            self._order(ctx),
            marker=marker,
            limit=self._limit(ctx),
            first_argument=len(query.args) + 1,
            ident="r.id",
            backwards=backwards,
        )
        query.add(page.where)
        sql = f"SELECT r.* FROM {self.kind.table} r WHERE {' AND '.join(query.conditions)} {page.order}"
        found = self.kind.decode_all(await ctx.db.fetch(sql, *query.args, *page.arguments))
        return found[::-1] if backwards else found

    async def fetch_own_page(self, ctx: Context, rule: str) -> list[R]:
        """A page of the resources of the caller's project, or of all projects if the rule allows it."""
        query = Query()
        if not sees_all(ctx, rule):
            query.add(f"r.project_id = {query.arg(ctx.token.project_id)}")
        return await self.fetch_page(ctx, query)

    async def response_body(self, ctx: Context, views: Iterable[dict[str, object]]) -> dict[str, object]:
        """The body of the response. The views are computed while other requests run."""
        shown = await collect(views)
        body: dict[str, object] = {self.plural: [select_fields(ctx, item) for item in shown]}
        links = self._links(ctx, shown)
        if links:
            body[f"{self.plural}_links"] = links
        return body

    def _filter(self, ctx: Context, query: Query) -> None:
        for name, values in ctx.query.items():
            if name in self.custom_filters:
                self.custom_filters[name](query, values)
            elif name in self.attributes:
                _match(query, name, self._attribute(ctx, name), values)
            elif name in _TAG_FILTERS:
                _match_tags(query, name, values)

    def _attribute(self, ctx: Context, name: str) -> Attribute:
        attribute = self.attributes[name]
        if attribute.rule is not None:
            ctx.authorize(attribute.rule)
        return attribute

    def _order(self, ctx: Context) -> list[SortKey]:
        keys = ctx.query.get("sort_key", [])
        directions = ctx.query.get("sort_dir", [])
        if directions and len(directions) != len(keys):
            raise BadRequest("The number of sort_keys and sort_dirs must be same")
        order: list[SortKey] = []
        for number, key in enumerate(keys):
            if key not in self.attributes:
                raise BadRequest(f"[{key[:80]!r}] is invalid attribute for sort_key")
            attribute = self._attribute(ctx, key)
            descending = bool(directions) and directions[number] == "desc"
            order.append(SortKey(attribute.column, descending, attribute.nullable))
        return order

    def _limit(self, ctx: Context) -> int:
        return min(int(ctx.query_one("limit") or 0) or MAX_PAGE_SIZE, MAX_PAGE_SIZE)

    async def _marker(self, ctx: Context, visible: Query) -> Row | None:
        """The marker's row. A row that the caller may not see is not found."""
        marker = ctx.query_one("marker")
        if not marker:
            return None
        where = " AND ".join([*visible.conditions, f"r.id = ${len(visible.args) + 1}"])
        row = await ctx.db.fetch_one(f"SELECT r.* FROM {self.kind.table} r WHERE {where}", *visible.args, marker)
        if row is None:
            raise BadRequest(f"Invalid input for operation: marker {marker[:80]} could not be found.")
        return row

    def _links(self, ctx: Context, shown: list[dict[str, object]]) -> list[dict[str, str]]:
        if not shown:
            return []
        links = []
        if len(shown) >= self._limit(ctx):
            links.append(self._link(ctx, "previous" if _is_backwards(ctx) else "next", shown))
        if ctx.query_one("marker"):
            links.append(self._link(ctx, "next" if _is_backwards(ctx) else "previous", shown))
        return links

    def _link(self, ctx: Context, rel: str, shown: list[dict[str, object]]) -> dict[str, str]:
        pairs = [(key, value) for key, values in ctx.query.items() for value in values]
        pairs = [(key, value) for key, value in pairs if key not in ("marker", "page_reverse")]
        pairs.append(("marker", str((shown[0] if rel == "previous" else shown[-1])["id"])))
        if rel == "previous":
            pairs.append(("page_reverse", "True"))
        return {"rel": rel, "href": f"{ctx.url(ctx.route.path)}?{urlencode(pairs)}"}


def select_fields(ctx: Context, shown: dict[str, object]) -> dict[str, object]:
    """The fields that the query selects, or all."""
    fields = [field for field in ctx.query.get("fields", ()) if field]
    return {name: shown[name] for name in fields if name in shown} if fields else shown


def _is_backwards(ctx: Context) -> bool:
    return (ctx.query_one("page_reverse") or "").lower() in ("true", "1")


def _match(query: Query, name: str, attribute: Attribute, values: list[str]) -> None:
    if attribute.kind == "boolean":
        wanted = {_boolean(name, value) for value in values}
        if len(wanted) == 1:
            query.add(attribute.column if wanted.pop() else f"NOT {attribute.column}")
        return
    if attribute.nullable and values in ([""], ["null"], ["None"]):
        query.add(f"{attribute.column} IS NULL")
        return
    converted = [_convert(name, attribute.kind, value) for value in values]
    if len(converted) == 1:
        query.add(f"{attribute.column} = {query.arg(converted[0])}")
    else:
        query.add(f"{attribute.column} = ANY({query.arg(converted)})")


def _boolean(name: str, value: str) -> bool:
    found = _BOOLEANS.get(value.lower())
    if found is None:
        raise BadRequest(f"Invalid input for operation: '{value[:40]}' cannot be converted to boolean for {name}.")
    return found


def _convert(name: str, kind: str, value: str) -> str | int | float:
    try:
        if kind == "integer":
            number = int(value)
            if abs(number) >= 2**63:
                raise ValueError(value)
            return number
        return clock.parse(value) if kind == "time" else value
    except (ValueError, OverflowError):
        raise BadRequest(f"Invalid input for operation: '{value[:40]}' is not a valid {kind} for {name}.") from None


def _match_tags(query: Query, name: str, values: list[str]) -> None:
    tags = limited(name, [tag for value in values for tag in value.split(",") if tag])
    if not tags:
        return
    has = [f"replace(r.tags, {query.arg(pack_tags([tag]))}, '') <> r.tags" for tag in tags]
    found = "(" + (" OR " if name.endswith("any") else " AND ").join(has) + ")"
    query.add(f"NOT {found}" if name.startswith("not") else found)
