"""Translates the SQL that we use from PostgreSQL's syntax to SQLite's."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

_TOKEN = re.compile(
    r"""
      (?P<keep> '(?:[^']|'')*' | "(?:[^"]|"")*" | --[^\n]* | /\*.*?\*/ )
    | \s* \b FOR \s+ (?: (?:NO\s+KEY\s+)? UPDATE | (?:KEY\s+)? SHARE ) \b (?P<lock>)
        (?: \s+ OF \s+ \w+ (?: \s*,\s* \w+ )* )? (?: \s+ (?: SKIP\s+LOCKED | NOWAIT ) \b )?
    | \s* (?P<any> = \s* ANY \b | (?:<>|!=) \s* ALL \b ) \s* \( \s*
        (?: \$(?P<list>\d+) (?: ::\w+\[\] )? | CAST \s* \( \s* \$(?P<cast>\d+) \s+ AS \s+ \w+\[\] \s* \) ) \s* \)
    | \$(?P<number>\d+)
    | (?<=\s) (?P<regex> !?~ ) (?=\s)
    | \b AS \s+ BOOLEAN \s* \) \s* AS \s+ (?P<flag>\w+)
    | \b (?P<change> INSERT | UPDATE | DELETE ) \b
    """,
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)


class Statement(NamedTuple):
    sql: str
    changes: bool
    """Whether it inserts, updates or deletes, so that it has a count of changed rows."""
    regex: bool
    """Whether it needs SQLite's extension for regular expressions."""
    flags: frozenset[str]
    """Result columns of the form `CAST(… AS BOOLEAN) AS name`; SQLite does not report the types of expressions."""


# Filters of users make many different statements. The cache is limited in number and size; long ones are rare.
MAX_CACHED_STATEMENTS = 4096
MAX_CACHED_LENGTH = 4096


def translate(sql: str) -> Statement:
    return _cached(sql) if len(sql) <= MAX_CACHED_LENGTH else _translate(sql)


def _translate(sql: str) -> Statement:
    changes = regex = False
    flags: set[str] = set()

    def replace(match: re.Match[str]) -> str:
        nonlocal changes, regex
        if match["keep"]:
            return match[0]
        if match["lock"] is not None:
            return ""
        if match["any"]:
            membership = "IN" if match["any"][0] == "=" else "NOT IN"
            return f" {membership} (SELECT value FROM json_each(?{match['list'] or match['cast']}))"
        if match["number"]:
            return f"?{match['number']}"
        if match["regex"]:
            regex = True
            return "NOT REGEXP" if match["regex"] == "!~" else "REGEXP"
        if match["flag"]:
            flags.add(match["flag"])
        if match["change"]:
            changes = True
        return match[0]

    return Statement(_TOKEN.sub(replace, sql), changes, regex, frozenset(flags))


_cached = lru_cache(maxsize=MAX_CACHED_STATEMENTS)(_translate)
