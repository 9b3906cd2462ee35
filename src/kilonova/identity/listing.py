"""Lists of identity objects: filters and pages."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from urllib.parse import urlencode

from kilonova.http import Context, Response
from kilonova.http.errors import BadRequest
from kilonova.http.loop_yielder import collect
from kilonova.identity.api import Json, link, list_links
from kilonova.identity.schemas import QUERY_TEXT
from kilonova.store import Row
from kilonova.store.conditions import Conditions


def flag(ctx: Context, key: str) -> bool:
    """A boolean of the query. A key without a value is true."""
    return ctx.query_one(key, "0") not in ("0", "false", "False")


# Conditions by the comparison that ends a query key. In LIKE, one of the databases ignores case.
_COMPARISONS = {
    "contains": "replace({column}, {value}, '') <> {column}",
    "startswith": "substr({column}, 1, length({value})) = {value}",
    "endswith": "substr({column}, length({column}) - length({value}) + 1) = {value}",
    "equals": "{column} = {value}",
}
_COMPARISON = re.compile(f"(.+)__(i?)({'|'.join(_COMPARISONS)})")


def inexact(texts: Sequence[str]) -> Json:
    """Schemas of the query keys that compare a text by more than equality, such as `name__icontains`."""
    return {f"^({'|'.join(texts)})__i?({'|'.join(_COMPARISONS)})$": QUERY_TEXT} if texts else {}


def filters(ctx: Context, texts: Sequence[str], flags: Sequence[str] = ()) -> Conditions:
    """Each query key is the name of its column, perhaps with a comparison."""
    where = Conditions()
    for key in texts:
        if (value := ctx.query_one(key)) is not None:
            where.add(f"{key} = ?", value)
    for key in ctx.query:
        if (found := _COMPARISON.fullmatch(key)) and found[1] in texts:
            _compare(where, found[1], found[3], ctx.query[key][-1], ignore_case=bool(found[2]))
    for key in flags:
        if key in ctx.query:
            where.add(f"{key} = ?", flag(ctx, key))
    return where


def _compare(where: Conditions, column: str, comparison: str, value: str, *, ignore_case: bool) -> None:
    condition = _COMPARISONS[comparison]
    if ignore_case:
        column, value = f"lower({column})", value.lower()
    # Every text contains the empty text, begins with it and ends with it.
    if value or comparison == "equals":
        condition = condition.format(column=column, value="CAST(? AS TEXT)")
        where.add(condition, *[value] * condition.count("?"))


async def list_page(
    ctx: Context,
    table: str,
    where: Conditions,
    view: Callable[[Context, Row], Json],
    keep: Callable[[Row], bool] | None = None,
    *,
    plural: str = "",
    path: str = "",
    order: Sequence[str] = ("name", "id"),
) -> Response:
    """The rows of a table, by default by name: all of them, unless the query has a limit.

    `plural` is the key of the list, by default the name of the table; `path` is its path, by default the key.
    """
    plural, columns = plural or table, ", ".join(order)
    path = path or plural
    marker = ctx.query_one("marker")
    if marker is not None:
        # Before other conditions are added: an entry that the list does not show is not found.
        sql = f"SELECT * FROM {table} WHERE {where.where()} AND id = ${len(where.arguments) + 1}"
        start = await ctx.db.fetch_one(sql, *where.arguments, marker)
        if start is None or not (keep is None or keep(start)):
            raise BadRequest(f"The marker {marker[:80]} is not the id of an entry of this list.")
        where.add(f"({columns}) > ({', '.join('?' * len(order))})", *(start[column] for column in order))
    sql = f"SELECT * FROM {table} WHERE {where.where()} ORDER BY {columns}"
    limit = ctx.query_one("limit")
    rows = await ctx.db.fetch(f"{sql} LIMIT {int(limit) + 1}" if limit else sql, *where.arguments)
    next_link = None
    if limit is not None and len(rows) > int(limit):
        rows = rows[: int(limit)]
        query = {key: values[-1] for key, values in ctx.query.items() if key != "marker"}
        next_link = link(ctx, f"{path}?{urlencode({**query, 'marker': rows[-1]['id']})}")
    shown = await collect(view(ctx, row) for row in rows if keep is None or keep(row))
    return Response({plural: shown, "links": list_links(ctx, path, next_link)})
