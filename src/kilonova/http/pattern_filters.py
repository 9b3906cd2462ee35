"""Filters by regular expressions that users choose: their conditions, and the search that evaluates them."""

from __future__ import annotations

from typing import Any

from kilonova.http.errors import BadRequest
from kilonova.store import Database, Invalid, Row, TooSlow, regular_expressions
from kilonova.store.conditions import Conditions

_OPERATOR = "~"


def pattern_condition(column: str, key: str, pattern: str) -> tuple[str, str]:
    """The condition for the pattern of a query key, and its argument. Letter case counts.

    Most patterns are plain text and need no regular expression.
    """
    try:
        regular_expressions.check_pattern(pattern)
    except regular_expressions.InvalidPattern as error:
        raise BadRequest(f"Invalid input for query parameter {key}: {error}") from None
    plain = regular_expressions.as_like(pattern)
    return (f"{column} {_OPERATOR} ?", pattern) if plain is None else (f"{column} LIKE ? ESCAPE '\\'", plain)


async def fetch(db: Database, conditions: Conditions, sql: str, *arguments: Any) -> list[Row]:
    """Run a statement with these conditions; with `db.search` if one of them is a regular expression."""
    try:
        read = db.search if _has_regular_expression(conditions) else db.fetch
        return await read(sql, *arguments)
    except Invalid as error:
        # PostgreSQL rejects some patterns that SQLite accepts.
        raise BadRequest(f"Invalid input for query parameters: {error}") from None
    except TooSlow as error:
        raise BadRequest(f"Invalid input for query parameters: {error}; use simpler patterns.") from None


def _has_regular_expression(conditions: Conditions) -> bool:
    return any(f" {_OPERATOR} " in part for part in conditions.parts)
