"""The Placement API's definition: its mount point, microversion range, error format and response headers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from email.utils import formatdate

from kilonova.http import Api, Context, Field, Response, View
from kilonova.http.error_messages import QUERY, ErrorMessages, SchemaViolation, shorten
from kilonova.http.errors import HttpError, VersionNotAcceptable
from kilonova.http.views import OMIT

MIN_VERSION, MAX_VERSION = 0, 39
UNDEFINED_CODE = "placement.undefined_code"


class PlacementMessages(ErrorMessages):
    def version_malformed(self, requested: str) -> str:
        return f"invalid version string: {requested}"

    def version_unknown(self, requested: str, lowest: str, highest: str) -> str:
        return f"Unacceptable version header: {requested}"

    def method_not_allowed(self, method: str, allowed: str) -> str:
        return f"The method {method} is not allowed for this resource."

    def unsupported_media_type(self, given: str | None) -> str:
        return f"The media type {given} is not supported, use application/json"

    def malformed_json(self, detail: str) -> str:
        return f"Malformed JSON: {detail}"

    def unknown_query_key(self, key: str, patterns: Sequence[str]) -> str:
        if patterns:
            regexes = ", ".join(repr(pattern) for pattern in patterns)
            return f"Invalid query string parameters: {key!r} does not match any of the regexes: {regexes}"
        return f"Invalid query string parameters: Additional properties are not allowed ({key!r} was unexpected)"

    def schema_violation(self, what: str, violation: SchemaViolation) -> str:
        """One line: osc-placement shows the last line of an error only."""
        kind = "Invalid query string parameters" if what == QUERY else "JSON does not validate"
        schema = "".join(f"[{step!r}]" for step in violation.schema)
        rule = f". Failed validating {violation.rule!r} in schema{schema}" if violation.rule else ""
        place = "".join(f"[{step!r}]" for step in violation.place)
        where = f". On instance{place[:200]}" if place else ""
        return f"{kind}: {shorten(violation.message)}{rule}{where}"


def render_error(error: HttpError, ctx: Context) -> dict[str, object]:
    return {"errors": [ctx.render("error", error)]}


api = Api(
    "placement",
    prefix="/placement",
    errors=lambda error, request_id: {"errors": [{"status": error.status, "detail": error.message}]},
    versioned_errors=render_error,
    major=1,
    low=MIN_VERSION,
    high=MAX_VERSION,
    version_header="openstack-api-version",
    version_pattern=re.compile(r"(\d+)\.(\d+)"),
    strict=True,
    body_limit=8 * 2**20,
    messages=PlacementMessages(),
)
LAST_MODIFIED = api.behaviour("responses have the header Last-Modified")


def _version_field(minor: int) -> Field:
    def value(error: HttpError, ctx: Context) -> object:
        return f"{api.major}.{minor}" if isinstance(error, VersionNotAcceptable) else OMIT

    return Field(value, {"type": "string"}, optional=True)


api.view(
    View(
        "error",
        {
            "status": Field(lambda error, ctx: error.status, {"type": "integer"}),
            "title": Field(lambda error, ctx: error.title, {"type": "string"}),
            "detail": Field(lambda error, ctx: error.message, {"type": "string"}),
            "request_id": Field(lambda error, ctx: ctx.request_id, {"type": "string"}),
            # Absent if the error occurs before the microversion is known.
            "code": Field(lambda error, ctx: error.code or UNDEFINED_CODE, {"type": "string"}, optional=True),
            "max_version": _version_field(MAX_VERSION),
            "min_version": _version_field(MIN_VERSION),
        },
    )
)


def with_last_modified(
    ctx: Context,
    body: object,
    changed_at: float | None = None,
    *,
    status: int | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """A response with `Last-Modified`: `changed_at`, or the current time if the time of change is unknown."""
    sent = dict(headers or {})
    if ctx.has_behaviour(LAST_MODIFIED):
        sent["Last-Modified"] = formatdate(ctx.now if changed_at is None else changed_at, usegmt=True)
        sent["Cache-Control"] = "no-cache"
    return Response(body, status, sent)


def link_path(ctx: Context, *segments: str) -> str:
    """A path for links in bodies, below the mount point that the caller used."""
    return f"{ctx.mount}/{'/'.join(segments)}"
