"""Checks regular expressions of filters (`column ~ $1`): syntax that both databases support, and a limited size.

Users choose the patterns. SQLite's engine has neither back-references nor look-around, so a pattern that SQLite
refuses is refused on PostgreSQL too. Its time grows with the text and the square of the pattern's size, where a
repeated part counts as often as it may occur. `Database.search` limits the time of the whole statement.
"""

from __future__ import annotations

import re
from functools import cache

import apsw

MAX_LENGTH = 255
MAX_SIZE = 256
MAX_NESTED_REPEATS = 3

_SPECIAL = re.compile(r"[\\.*+?{}()\[\]|^$]")
_REPEAT = re.compile(r"\{([0-9]*)(,?)([0-9]*)\}")
_CHARACTER_CLASS = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)


class InvalidPattern(ValueError):
    pass


def check_pattern(pattern: str) -> None:
    """Raises InvalidPattern."""
    _check_size(pattern)
    try:
        _scratch_connection().execute("SELECT '' REGEXP ?1", (pattern,)).fetchall()
    except apsw.SQLError as error:
        raise InvalidPattern(str(error)) from None
    except UnicodeEncodeError:
        raise InvalidPattern("the pattern is not valid Unicode") from None


def matches(pattern: str, text: str) -> bool:
    """Whether a short text matches a pattern that `check_pattern` accepts."""
    ((found,),) = _scratch_connection().execute("SELECT ?2 REGEXP ?1", (pattern, text)).fetchall()
    return bool(found)


def as_like(pattern: str) -> str | None:
    """The equal pattern of `LIKE … ESCAPE '\\'`; None if the pattern has special characters other than ^ and $."""
    text = pattern.removeprefix("^").removesuffix("$")
    if _SPECIAL.search(text):
        return None
    escaped = text.replace("%", "\\%").replace("_", "\\_")
    return ("" if pattern.startswith("^") else "%") + escaped + ("" if pattern.endswith("$") else "%")


def load_extension(connection: apsw.Connection) -> None:
    """Add the operator REGEXP to a connection. This takes some milliseconds, so it is done at first use."""
    from apsw import sqlite_extra

    sqlite_extra.load(connection, "regexp")


def _check_size(pattern: str) -> None:
    if len(pattern) > MAX_LENGTH:
        raise InvalidPattern(f"the pattern has more than {MAX_LENGTH} characters")
    size, nested_repeats = _measure(pattern)
    if size > MAX_SIZE:
        raise InvalidPattern(
            f"the pattern has a size of more than {MAX_SIZE}, where repeated parts count as often as they may occur"
        )
    if nested_repeats > MAX_NESTED_REPEATS:
        raise InvalidPattern(f"the pattern has repeats that are nested more than {MAX_NESTED_REPEATS} levels deep")


def _measure(pattern: str) -> tuple[int, int]:
    """The pattern's size with all repeats expanded, and how deep its repeats are nested."""
    outer: list[list[tuple[int, int]]] = []
    parts: list[tuple[int, int]] = []
    place = 0
    while place < len(pattern):
        character, width = pattern[place], 1
        if character == "\\":
            width = 2
            parts.append((1, 0))
        elif character == "[" and (found := _CHARACTER_CLASS.match(pattern, place)):
            width = len(found[0])
            parts.append((width, 0))
        elif character == "(":
            outer.append(parts)
            parts = []
        elif character == ")" and outer:
            group, parts = _total(parts), outer.pop()
            parts.append(group)
        elif character in "*+?" and parts:
            size, nested = parts[-1]
            parts[-1] = (size + 1, nested + 1)
        elif character == "{" and parts and (found := _REPEAT.match(pattern, place)):
            width = len(found[0])
            size, nested = parts[-1]
            parts[-1] = (size * max(int(found[1] or 0), int(found[3] or 0), 1) + 1, nested + 1)
        else:
            parts.append((1, 0))
        place += width
    for open_group in outer:
        parts = [*open_group, *parts]
    return _total(parts)


def _total(parts: list[tuple[int, int]]) -> tuple[int, int]:
    return sum(size for size, _ in parts) + 1, max((nested for _, nested in parts), default=0)


@cache
def _scratch_connection() -> apsw.Connection:
    connection = apsw.Connection(":memory:")
    load_extension(connection)
    return connection
