"""The attribute `expires_at` of requests that create trusts and application credentials."""

from __future__ import annotations

from kilonova import clock
from kilonova.http.errors import BadRequest
from kilonova.identity.api import Json

EXPIRES_AT: Json = {"type": ["string", "null"], "maxLength": 64}


def parse_expiry(text: str | None) -> float | None:
    """The time in epoch seconds; None: never. Raises BadRequest unless it is in the future."""
    if text is None:
        return None
    try:
        moment = clock.parse(text)
    except ValueError:
        raise BadRequest(
            f"expires_at: an ISO 8601 time such as 2026-01-02T03:04:05Z is expected, not {text}."
        ) from None
    if moment <= clock.now():
        raise BadRequest(f"expires_at: a time in the future is expected, not {text}.")
    return moment
