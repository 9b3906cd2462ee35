"""Trusted image certificates of a server: stored and shown, not yet used for validation."""

from __future__ import annotations

from collections.abc import Mapping

from kilonova.http import Context
from kilonova.http.errors import BadRequest
from kilonova.http.parameter_types import Schema
from kilonova.store.records import encode_document

SCHEMA: Schema = {
    "type": ["array", "null"],
    "minItems": 1,
    "maxItems": 50,
    "uniqueItems": True,
    "items": {"type": "string", "minLength": 1},
}
CREATE = "os_compute_api:servers:create:trusted_certs"
REBUILD = "os_compute_api:servers:rebuild:trusted_certs"
NOT_OF_VOLUMES = "Image certificate validation is not supported when booting from volume"


def check(
    ctx: Context,
    requested: list[str] | None,
    rule: str,
    target: Mapping[str, str] | None = None,
    *,
    volume_backed: bool,
) -> None:
    """Check that the caller may set certificates for this server."""
    if not requested:
        return
    ctx.authorize(rule, target)
    if volume_backed:
        raise BadRequest(NOT_OF_VOLUMES)


def column(requested: list[str] | None) -> str | None:
    """The certificates' column of the server's row."""
    return encode_document(requested) if requested else None
