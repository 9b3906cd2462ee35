"""Certificates that the images of a server shall be validated by: kept with the server, for hosts that can."""

from __future__ import annotations

from typing import Any

import orjson

from kilonova.http import Context
from kilonova.http.errors import BadRequest
from kilonova.http.pieces import Schema

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
    ctx: Context, asked: list[str] | None, rule: str, target: dict[str, Any] | None = None, *, volume_backed: bool
) -> None:
    """Whether a server may have them."""
    if not asked:
        return
    ctx.authorize(rule, target)
    if volume_backed:
        raise BadRequest(NOT_OF_VOLUMES)


def column(asked: list[str] | None) -> str | None:
    """As the server's row keeps them."""
    return orjson.dumps(asked).decode() if asked else None


def shown(text: str | None) -> list[str] | None:
    found: list[str] | None = orjson.loads(text) if text else None
    return found
