"""Keyset pagination: the next page begins after the marker's row, however many rows came or went meanwhile.

page = Page([SortKey("created_at", descending=True)], marker=row, limit=100, first_argument=2)
rows = await db.fetch(
    f"SELECT * FROM servers WHERE project_id = $1 AND {page.where} {page.order}", project_id, *page.arguments
)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from kilonova.store.port import Row

_COLUMN = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)?")


class SortKey(NamedTuple):
    """A column to sort by; null counts as less than any value. Indexes serve only keys that are not nullable."""

    column: str
    descending: bool = False
    nullable: bool = True

    @property
    def field(self) -> str:
        """Its name in a row."""
        return self.column.rpartition(".")[2]


class Page:
    """Rows after the marker's in the order of the keys, then of `ident`, which no two rows have alike.

    `where` is a condition to put after AND, `order` is ORDER BY and LIMIT, `arguments` belong to the parameters from
    `first_argument` on. `backwards` gives the rows before the marker instead, nearest first.
    """

    def __init__(
        self,
        sort: Sequence[SortKey],
        *,
        marker: Row | None = None,
        limit: int | None = None,
        first_argument: int = 1,
        ident: str = "id",
        backwards: bool = False,
    ) -> None:
        self.arguments: list[Any] = []
        self._first = first_argument
        keys = [_turned(key) if backwards else key for key in _until_unique(sort, ident)]
        self.where = "TRUE" if marker is None else self._after(keys, marker)
        self.order = "ORDER BY " + ", ".join(_order(key) for key in keys)
        if limit is not None:
            self.order += f" LIMIT {self._parameter(limit)}"

    def _after(self, keys: Sequence[SortKey], marker: Row) -> str:
        values = [None if marker[key.field] is None else self._parameter(marker[key.field]) for key in keys]
        for key, value in zip(keys, values, strict=True):
            if value is None and not key.nullable:
                raise ValueError(f"the marker's {key.field} is null, which its key says it cannot be")
        if not any(key.nullable for key in keys) and len({key.descending for key in keys}) == 1:
            columns = ", ".join(key.column for key in keys)
            return f"({columns}) {_beyond(keys[0])} ({', '.join(str(value) for value in values)})"
        condition = _any_of(_choices(keys, values))
        if keys[0].nullable:
            return condition
        # What the choices imply already, said in a way that an index understands.
        return f"{keys[0].column} {_beyond(keys[0])}= {values[0]} AND {condition}"

    def _parameter(self, value: Any) -> str:
        self.arguments.append(value)
        return f"${self._first + len(self.arguments) - 1}"


def _until_unique(sort: Sequence[SortKey], ident: str) -> list[SortKey]:
    """The keys that matter: each once, and none behind the one that is never equal in two rows."""
    descending = sort[-1].descending if sort else False
    found: dict[str, SortKey] = {}
    for key in [*sort, SortKey(ident, descending)]:
        if not _COLUMN.fullmatch(key.column):
            raise ValueError(f"{key.column!r} is not a column")
        if key.column == ident:
            found.setdefault(ident, key._replace(nullable=False))
            break
        found.setdefault(key.column, key)
    return list(found.values())


def _turned(key: SortKey) -> SortKey:
    return key._replace(descending=not key.descending)


def _order(key: SortKey) -> str:
    """The databases disagree on where nulls go. Saying it for others would keep PostgreSQL off its indexes."""
    direction = "DESC" if key.descending else "ASC"
    if not key.nullable:
        return f"{key.column} {direction}"
    return f"{key.column} {direction} NULLS {'LAST' if key.descending else 'FIRST'}"


def _choices(keys: Sequence[SortKey], values: Sequence[str | None]) -> list[str]:
    """Alike in the first few keys and beyond in the next, for each of them."""
    choices = []
    alike: list[str] = []
    for key, value in zip(keys, values, strict=True):
        beyond = _all_beyond(key, value)
        if beyond is not None:
            choices.append(" AND ".join([*alike, beyond]))
        alike.append(f"{key.column} IS NULL" if value is None else f"{key.column} = {value}")
    return choices


def _any_of(choices: list[str]) -> str:
    return f"({' OR '.join(f'({choice})' for choice in choices)})"


def _all_beyond(key: SortKey, value: str | None) -> str | None:
    """What lies beyond the value in the key's direction; None if nothing can."""
    if value is None:
        return None if key.descending else f"{key.column} IS NOT NULL"
    beyond = f"{key.column} {_beyond(key)} {value}"
    return f"({beyond} OR {key.column} IS NULL)" if key.nullable and key.descending else beyond


def _beyond(key: SortKey) -> str:
    return "<" if key.descending else ">"
