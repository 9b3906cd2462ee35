"""Paging as the Compute API does it: `limit` and `marker` in, a link to the next page out."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from kilonova.http.context import Context
from kilonova.http.errors import BadRequest

LIMIT = {"type": "string", "pattern": "^ *[0-9]{1,18} *$"}
MARKER = {"type": "string"}


def limit_of(ctx: Context) -> int:
    """The page's length: what was asked for, at most the configured maximum."""
    most = ctx.services.config.api.max_limit
    asked = ctx.query_one("limit")
    return most if asked is None else min(int(asked), most)


def next_link(ctx: Context, path: str, last: str, full: bool) -> list[dict[str, Any]]:
    """The `…_links` list: one `next` when the page was full, else empty."""
    if not full:
        return []
    query = [(key, value) for key, values in ctx.query.items() if key != "marker" for value in values]
    return [{"rel": "next", "href": ctx.url(path) + "?" + urlencode([*query, ("marker", last)])}]


def marker_missing(marker: str) -> BadRequest:
    return BadRequest(f"marker [{marker}] not found")
