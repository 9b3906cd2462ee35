"""Limits how many values a filter of a list may have: each becomes a condition of the statement."""

from __future__ import annotations

from collections.abc import Sized
from typing import TypeVar

from kilonova.http.errors import BadRequest

MAX_FILTER_VALUES = 100

S = TypeVar("S", bound=Sized)


def limited(name: str, values: S) -> S:
    """Return the values. Raises BadRequest if there are more than MAX_FILTER_VALUES."""
    if len(values) > MAX_FILTER_VALUES:
        raise BadRequest(f"Invalid input for {name}: {len(values)} values, at most {MAX_FILTER_VALUES} are allowed.")
    return values
