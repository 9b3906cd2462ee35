"""Sorting and paging of lists that are short by nature, so that nothing is gained by leaving it to the database."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from kilonova.http import Context
from kilonova.http.api import multi
from kilonova.http.errors import BadRequest
from kilonova.http.pagination import LIMIT, MARKER, limit_of, marker_missing, next_link
from kilonova.http.pieces import STRING, Schema
from kilonova.store import Row

# Clients send more than any list knows; that was always passed over.
QUERY: dict[str, Schema] = {
    "limit": LIMIT,
    "marker": MARKER,
    "offset": LIMIT,
    "sort": STRING,
    "sort_key": STRING,
    "sort_dir": {"type": "string", "enum": ["asc", "desc"]},
    "*": multi(STRING),
}
_DEFAULT = [("created_at", True)]


def page(ctx: Context, rows: Sequence[Row], path: str, keys: Collection[str]) -> tuple[list[Row], list[dict[str, Any]]]:
    """The page of rows that was asked for, and the link to the next one. `keys` are columns to sort by."""
    ordered = _sorted(rows, _order(ctx, keys))
    limit = limit_of(ctx)
    start = _after(ordered, ctx.query_one("marker")) + int(ctx.query_one("offset") or 0)
    found = ordered[start : start + limit]
    more = len(ordered) > start + limit
    return found, next_link(ctx, path, found[-1]["id"], more) if found else []


def _order(ctx: Context, keys: Collection[str]) -> list[tuple[str, bool]]:
    """Columns, and whether the greatest comes first: of `sort=name:asc,id`, or of the older `sort_key`."""
    asked = ctx.query_one("sort")
    if asked is None:
        key = ctx.query_one("sort_key")
        asked = f"{key}:{ctx.query_one('sort_dir') or 'desc'}" if key else None
    if asked is None:
        return _DEFAULT
    order = []
    for part in asked.split(","):
        key, _, way = part.strip().partition(":")
        if key not in keys or way not in ("", "asc", "desc"):
            raise BadRequest(
                f"Invalid input received: sort {part.strip()[:80]!r} is none of {', '.join(sorted(keys))}."
            )
        order.append((key, way != "asc"))
    return order


def _sorted(rows: Sequence[Row], order: list[tuple[str, bool]]) -> list[Row]:
    ordered = sorted(rows, key=lambda row: str(row["id"]), reverse=order[0][1])
    for key, descending in reversed(order):
        ordered.sort(key=lambda row: (row[key] is not None, row[key]), reverse=descending)
    return ordered


def _after(rows: list[Row], marker: str | None) -> int:
    if marker is None:
        return 0
    for place, row in enumerate(rows, start=1):
        if row["id"] == marker:
            return place
    raise marker_missing(marker[:80])
