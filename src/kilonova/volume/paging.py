"""Sorts and pages short lists in memory."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from kilonova.http import Context
from kilonova.http.api import multi
from kilonova.http.errors import BadRequest
from kilonova.http.pagination import LIMIT, MARKER, marker_not_found, next_link, page_limit
from kilonova.http.parameter_types import STRING, Schema
from kilonova.store import Row

# Unknown keys are ignored.
QUERY: dict[str, Schema] = {
    "limit": LIMIT,
    "marker": MARKER,
    "offset": LIMIT,
    "sort": STRING,
    "sort_key": STRING,
    "sort_dir": {"type": "string", "enum": ["asc", "desc"]},
    "*": multi(STRING),
}
_DEFAULT_ORDER = [("created_at", True)]


def page(ctx: Context, rows: Sequence[Row], path: str, keys: Collection[str]) -> tuple[list[Row], list[dict[str, Any]]]:
    """The requested page of rows, and the link to the next one. `keys` are the columns to sort by."""
    ordered = _sorted(rows, _order(ctx, keys))
    limit = page_limit(ctx)
    start = _after(ordered, ctx.query_one("marker")) + int(ctx.query_one("offset") or 0)
    found = ordered[start : start + limit]
    more = len(ordered) > start + limit
    return found, next_link(ctx, path, found[-1]["id"], more) if found else []


def _order(ctx: Context, keys: Collection[str]) -> list[tuple[str, bool]]:
    """Columns, and whether each is descending, from `sort=name:asc,id` or the older `sort_key`."""
    requested = ctx.query_one("sort")
    if requested is None:
        key = ctx.query_one("sort_key")
        requested = f"{key}:{ctx.query_one('sort_dir') or 'desc'}" if key else None
    if requested is None:
        return _DEFAULT_ORDER
    order = []
    for part in requested.split(","):
        key, _, direction = part.strip().partition(":")
        if key not in keys or direction not in ("", "asc", "desc"):
            raise BadRequest(
                f"Invalid input received: sort {part.strip()[:80]!r} is none of {', '.join(sorted(keys))}."
            )
        order.append((key, direction != "asc"))
    return order


def _sorted(rows: Sequence[Row], order: list[tuple[str, bool]]) -> list[Row]:
    ordered = sorted(rows, key=lambda row: str(row["id"]), reverse=order[0][1])
    for key, descending in reversed(order):
        ordered.sort(key=lambda row: (row[key] is not None, row[key]), reverse=descending)
    return ordered


def _after(rows: list[Row], marker: str | None) -> int:
    if marker is None:
        return 0
    for position, row in enumerate(rows, start=1):
        if row["id"] == marker:
            return position
    raise marker_not_found(marker[:80])
