"""The Placement API: where it is mounted, its range of versions, and how it writes errors."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from email.utils import formatdate
from typing import Any

from kilonova.http import Answer, Api, Context, Field, View
from kilonova.http.errors import HttpError, VersionNotAcceptable
from kilonova.http.views import OMIT
from kilonova.http.words import QUERY, Words, Wrong, shortened

LOW, HIGH = 0, 39
UNDEFINED = "placement.undefined_code"
DATED = "answers say when what they show was last changed"


class PlacementWords(Words):
    def version_malformed(self, asked: str) -> str:
        return f"invalid version string: {asked}"

    def version_unknown(self, asked: str, lowest: str, highest: str) -> str:
        return f"Unacceptable version header: {asked}"

    def method(self, method: str, allowed: str) -> str:
        return f"The method {method} is not allowed for this resource."

    def media_type(self, given: str | None) -> str:
        return f"The media type {given} is not supported, use application/json"

    def malformed(self, detail: str) -> str:
        return f"Malformed JSON: {detail}"

    def query_key(self, key: str, patterns: Sequence[str]) -> str:
        if patterns:
            regexes = ", ".join(repr(pattern) for pattern in patterns)
            return f"Invalid query string parameters: {key!r} does not match any of the regexes: {regexes}"
        return f"Invalid query string parameters: Additional properties are not allowed ({key!r} was unexpected)"

    def invalid(self, what: str, wrong: Wrong) -> str:
        kind = "Invalid query string parameters" if what == QUERY else "JSON does not validate"
        schema = "".join(f"[{step!r}]" for step in wrong.schema)
        rule = f"\n\nFailed validating {wrong.rule!r} in schema{schema}" if wrong.rule else ""
        place = "".join(f"[{step!r}]" for step in wrong.place)
        where = f"\n\nOn instance{place[:200]}" if place else ""
        return f"{kind}: {shortened(wrong.message)}{rule}{where}"


def fault(error: HttpError, ctx: Context) -> dict[str, Any]:
    return {"errors": [ctx.render("error", error)]}


api = Api(
    "placement",
    prefix="/placement",
    errors=lambda error, request_id: {"errors": [{"status": error.status, "detail": error.message}]},
    versioned_errors=fault,
    major=1,
    low=LOW,
    high=HIGH,
    version_header="openstack-api-version",
    version_pattern=re.compile(r"(\d+)\.(\d+)"),
    strict=True,
    body_limit=8 * 2**20,
    words=PlacementWords(),
)


def _bound(number: int) -> Field:
    def value(error: HttpError, ctx: Context) -> Any:
        return f"{api.major}.{number}" if isinstance(error, VersionNotAcceptable) else OMIT

    return Field(value, {"type": "string"}, optional=True)


api.view(
    View(
        "error",
        {
            "status": Field(lambda error, ctx: error.status, {"type": "integer"}),
            "title": Field(lambda error, ctx: error.title, {"type": "string"}),
            "detail": Field(lambda error, ctx: error.message, {"type": "string"}),
            "request_id": Field(lambda error, ctx: ctx.request_id, {"type": "string"}),
            # Not there where the error comes before the version is known.
            "code": Field(lambda error, ctx: error.code or UNDEFINED, {"type": "string"}, optional=True),
            "max_version": _bound(HIGH),
            "min_version": _bound(LOW),
        },
    )
)


def dated(
    ctx: Context,
    body: Any,
    changed_at: float | None = None,
    *,
    status: int | None = None,
    headers: Mapping[str, str] | None = None,
) -> Answer:
    """An answer with the time of the last change of what it shows; unknown, it may have been just now."""
    sent = dict(headers or {})
    if ctx.behaves(DATED):
        sent["Last-Modified"] = formatdate(ctx.now if changed_at is None else changed_at, usegmt=True)
        sent["Cache-Control"] = "no-cache"
    return Answer(body, status, sent)


def path(ctx: Context, *segments: str) -> str:
    """A path below wherever the caller reached the API, as the links in bodies have it."""
    return f"{ctx.mount}/{'/'.join(segments)}"
