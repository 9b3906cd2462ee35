"""Sorts and pages short lists in memory."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import Protocol, TypeVar

from kilonova.http import Context
from kilonova.http.api import multi
from kilonova.http.errors import BadRequest
from kilonova.http.filter_values import limited
from kilonova.http.pagination import LIMIT, MARKER, marker_not_found, next_link, page_limit
from kilonova.http.parameter_types import STRING, Schema

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


class HasId(Protocol):
    @property
    def id(self) -> str: ...


R = TypeVar("R", bound=HasId)


def page(ctx: Context, records: Sequence[R], path: str, keys: Collection[str]) -> tuple[list[R], list[dict[str, str]]]:
    """The requested page of records, and the link to the next one. `keys` are the fields to sort by."""
    ordered = _sorted(records, _order(ctx, keys))
    limit = page_limit(ctx)
    start = _after(ordered, ctx.query_one("marker")) + int(ctx.query_one("offset") or 0)
    found = ordered[start : start + limit]
    more = len(ordered) > start + limit
    return found, next_link(ctx, path, found[-1].id, more) if found else []


def _order(ctx: Context, keys: Collection[str]) -> list[tuple[str, bool]]:
    """Fields, and whether each is descending, from `sort=name:asc,id` or the older `sort_key`."""
    requested = ctx.query_one("sort")
    if requested is None:
        key = ctx.query_one("sort_key")
        requested = f"{key}:{ctx.query_one('sort_dir') or 'desc'}" if key else None
    if requested is None:
        return _DEFAULT_ORDER
    order = []
    for part in limited("sort", requested.split(",")):
        key, _, direction = part.strip().partition(":")
        if key not in keys or direction not in ("", "asc", "desc"):
            raise BadRequest(
                f"Invalid input received: sort {part.strip()[:80]!r} is none of {', '.join(sorted(keys))}."
            )
        order.append((key, direction != "asc"))
    return order


def _sorted(records: Sequence[R], order: list[tuple[str, bool]]) -> list[R]:
    ordered = sorted(records, key=lambda record: record.id, reverse=order[0][1])
    for key, descending in reversed(order):
        ordered.sort(key=partial(_sort_value, key), reverse=descending)
    return ordered


def _sort_value(key: str, record: HasId) -> tuple[bool, object]:
    """Null is less than any value."""
    value = getattr(record, key)
    return value is not None, value


def _after(records: Sequence[HasId], marker: str | None) -> int:
    if marker is None:
        return 0
    for position, record in enumerate(records, start=1):
        if record.id == marker:
            return position
    raise marker_not_found(marker[:80])
