"""Dry runs (`X-Kilonova-Dry-Run: 1`): respond with the plan and change nothing. Routes without support refuse them."""

from __future__ import annotations

from collections.abc import Mapping

from kilonova.http.context import Context
from kilonova.http.errors import BadRequest

HEADER_NAME = "X-Kilonova-Dry-Run"
HEADER = HEADER_NAME.lower()
_VALUES = {"1": True, "true": True, "0": False, "false": False}


def is_requested(ctx: Context) -> bool:
    text = ctx.headers.get(HEADER, "0").strip().lower()
    if text not in _VALUES:
        raise BadRequest(f"The header {HEADER_NAME} must be 0 or 1, not {text[:40]!r}.")
    return _VALUES[text]


def is_true(headers: Mapping[str, str]) -> bool:
    """Whether a dry run is requested, by a header that may be invalid."""
    return _VALUES.get(headers.get(HEADER, "0").strip().lower(), False)


def refuse_unsupported(ctx: Context, method: str) -> None:
    if is_requested(ctx) and method not in ("GET", "HEAD") and not ctx.route.dry_run:
        raise BadRequest(f"{HEADER_NAME}: {ctx.route.key} does not support dry runs.")
