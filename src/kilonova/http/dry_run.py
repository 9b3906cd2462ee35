"""`X-Kilonova-Dry-Run: 1`: answer what would happen and change nothing. What cannot be tried is refused, not done."""

from __future__ import annotations

from kilonova.http.context import Context
from kilonova.http.errors import BadRequest

NAME = "X-Kilonova-Dry-Run"
HEADER = NAME.lower()
_VALUES = {"1": True, "true": True, "0": False, "false": False}


def asked(ctx: Context) -> bool:
    text = ctx.headers.get(HEADER, "0").strip().lower()
    if text not in _VALUES:
        raise BadRequest(f"The header {NAME} must be 0 or 1, not {text[:40]!r}.")
    return _VALUES[text]


def check(ctx: Context, method: str) -> None:
    if asked(ctx) and method not in ("GET", "HEAD") and not ctx.route.dry_run:
        raise BadRequest(f"{NAME}: {ctx.route.key} cannot be tried without being done.")
