"""Keyset pagination: a page starts after the marker's row, even if rows were added or deleted meanwhile.

page = Page([SortKey("created_at", descending=True)], marker=row, limit=100, first_argument=2)
rows = await db.fetch(
    f"SELECT * FROM servers WHERE project_id = $1 AND {page.where} {page.order}", project_id, *page.arguments
)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from kilonova.store.interface import Row

_COLUMN = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)?")


class SortKey(NamedTuple):
    """A column to sort by. Null is less than any value. Only keys that are not nullable can use an index."""

    column: str
    descending: bool = False
    nullable: bool = True

    @property
    def field(self) -> str:
        """The column's name in a row."""
        return self.column.rpartition(".")[2]


class Page:
    """The rows after the marker, sorted by the keys and then by the unique column `ident`.

    `where` is a condition to put after AND, `order` is ORDER BY and LIMIT, `arguments` are the values of the parameters
    from `first_argument` on. With `backwards`, the page has the rows before the marker, nearest first.
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
        keys = [_reversed(key) if backwards else key for key in _effective_keys(sort, ident)]
        self.where = "TRUE" if marker is None else self._after(keys, marker)
        self.order = "ORDER BY " + ", ".join(_order(key) for key in keys)
        if limit is not None:
            self.order += f" LIMIT {self._parameter(limit)}"

    def _after(self, keys: Sequence[SortKey], marker: Row) -> str:
        values = [None if marker[key.field] is None else self._parameter(marker[key.field]) for key in keys]
        for key, value in zip(keys, values, strict=True):
            if value is None and not key.nullable:
                raise ValueError(f"the marker's {key.field} is null, but its sort key is not nullable")
        if not any(key.nullable for key in keys) and len({key.descending for key in keys}) == 1:
            columns = ", ".join(key.column for key in keys)
            return f"({columns}) {_operator(keys[0])} ({', '.join(str(value) for value in values)})"
        condition = _any_of(_alternatives(keys, values))
        if keys[0].nullable:
            return condition
        # The first condition is redundant, but lets the database use an index.
        return f"{keys[0].column} {_operator(keys[0])}= {values[0]} AND {condition}"

    def _parameter(self, value: Any) -> str:
        self.arguments.append(value)
        return f"${self._first + len(self.arguments) - 1}"


def _effective_keys(sort: Sequence[SortKey], ident: str) -> list[SortKey]:
    """The keys without duplicates, ending with the unique one."""
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


def _reversed(key: SortKey) -> SortKey:
    return key._replace(descending=not key.descending)


def _order(key: SortKey) -> str:
    """ORDER BY of one key. NULLS makes both databases agree, but keeps PostgreSQL from using an index."""
    direction = "DESC" if key.descending else "ASC"
    if not key.nullable:
        return f"{key.column} {direction}"
    return f"{key.column} {direction} NULLS {'LAST' if key.descending else 'FIRST'}"


def _alternatives(keys: Sequence[SortKey], values: Sequence[str | None]) -> list[str]:
    """One condition per key: the keys before it are equal, and the key itself is beyond the marker."""
    conditions = []
    equal: list[str] = []
    for key, value in zip(keys, values, strict=True):
        beyond = _condition_beyond(key, value)
        if beyond is not None:
            conditions.append(" AND ".join([*equal, beyond]))
        equal.append(f"{key.column} IS NULL" if value is None else f"{key.column} = {value}")
    return conditions


def _any_of(conditions: list[str]) -> str:
    return f"({' OR '.join(f'({condition})' for condition in conditions)})"


def _condition_beyond(key: SortKey, value: str | None) -> str | None:
    """The condition for values beyond the given one in the key's direction; None if there can be none."""
    if value is None:
        return None if key.descending else f"{key.column} IS NOT NULL"
    beyond = f"{key.column} {_operator(key)} {value}"
    return f"({beyond} OR {key.column} IS NULL)" if key.nullable and key.descending else beyond


def _operator(key: SortKey) -> str:
    return "<" if key.descending else ">"
