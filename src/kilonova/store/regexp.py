"""Regular expressions in filters (`column ~ $1`): what both databases understand, and nothing that can run away.

A filter's pattern comes from anybody. SQLite's engine takes time linear in the text and knows neither back-references
nor look-around; whatever it refuses is refused for PostgreSQL too.
"""

from __future__ import annotations

from functools import cache

import apsw


class BadPattern(ValueError):
    pass


def check(pattern: str) -> None:
    """Raises BadPattern."""
    try:
        _scratch().execute("SELECT '' REGEXP ?1", (pattern,)).fetchall()
    except apsw.SQLError as error:
        raise BadPattern(str(error)) from None
    except UnicodeEncodeError:
        raise BadPattern("text that is not Unicode") from None


def load(connection: apsw.Connection) -> None:
    """Give a connection the operator REGEXP. Costs some milliseconds the first time, so late."""
    from apsw import sqlite_extra

    sqlite_extra.load(connection, "regexp")


@cache
def _scratch() -> apsw.Connection:
    connection = apsw.Connection(":memory:")
    load(connection)
    return connection
