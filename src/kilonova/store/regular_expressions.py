"""Checks regular expressions of filters (`column ~ $1`) for syntax that both databases support in linear time.

Users choose the patterns. SQLite's engine is linear and has neither back-references nor look-around, so a pattern
that SQLite refuses is refused on PostgreSQL too.
"""

from __future__ import annotations

from functools import cache

import apsw


class InvalidPattern(ValueError):
    pass


def check_pattern(pattern: str) -> None:
    """Raises InvalidPattern."""
    try:
        _scratch_connection().execute("SELECT '' REGEXP ?1", (pattern,)).fetchall()
    except apsw.SQLError as error:
        raise InvalidPattern(str(error)) from None
    except UnicodeEncodeError:
        raise InvalidPattern("the pattern is not valid Unicode") from None


def load_extension(connection: apsw.Connection) -> None:
    """Add the operator REGEXP to a connection. This takes some milliseconds, so it is done at first use."""
    from apsw import sqlite_extra

    sqlite_extra.load(connection, "regexp")


@cache
def _scratch_connection() -> apsw.Connection:
    connection = apsw.Connection(":memory:")
    load_extension(connection)
    return connection
