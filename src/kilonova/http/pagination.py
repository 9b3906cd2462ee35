"""Pagination of the Compute API: the query keys `limit` and `marker`, and the link to the next page."""

from __future__ import annotations

from urllib.parse import urlencode

from kilonova.http.context import Context
from kilonova.http.errors import BadRequest

LIMIT = {"type": "string", "pattern": "^ *[0-9]{1,18} *$"}
MARKER = {"type": "string"}


def page_limit(ctx: Context) -> int:
    """The requested length of a page, at most the configured maximum."""
    maximum = ctx.services.config.api.max_limit
    requested = ctx.query_one("limit")
    return maximum if requested is None else min(int(requested), maximum)


def next_link(ctx: Context, path: str, last: str, full: bool) -> list[dict[str, str]]:
    """The `…_links` list: one `next` if the page is full, else empty."""
    if not full:
        return []
    query = [(key, value) for key, values in ctx.query.items() if key != "marker" for value in values]
    return [{"rel": "next", "href": ctx.url(path) + "?" + urlencode([*query, ("marker", last)])}]


def marker_not_found(marker: str) -> BadRequest:
    return BadRequest(f"marker [{marker}] not found")
