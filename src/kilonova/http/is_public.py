"""The filter `is_public` of resources that are public or private to some projects."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kilonova.http.errors import BadRequest

if TYPE_CHECKING:
    from kilonova.http.context import Context
    from kilonova.policy.credentials import Credentials

_TRUE = frozenset({"1", "t", "true", "on", "y", "yes"})
_FALSE = frozenset({"0", "f", "false", "off", "n", "no"})


def sees_all(token: Credentials) -> bool:
    """Administrators see the private resources of all projects."""
    return "admin" in token.roles


def is_public_filter(ctx: Context) -> bool | None:
    """Whether to list public or private resources, or both (None). Only administrators can choose."""
    text = ctx.query_one("is_public")
    if text is None or not sees_all(ctx.token):
        return True
    word = text.strip().lower()
    if word == "none":
        return None
    if word not in _TRUE | _FALSE:
        raise BadRequest(f"Invalid is_public filter [{text[:80]}]")
    return word in _TRUE
