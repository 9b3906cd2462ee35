"""Resource classes and traits. Standard ones exist without a row in the database, custom ones have one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

from kilonova import clock
from kilonova.store import Reader, Transaction

INSERT_NAME = "INSERT INTO {} (name, created_at, updated_at) VALUES ($1, $2, $2) ON CONFLICT DO NOTHING"
CUSTOM_NAME = re.compile(r"CUSTOM_[A-Z0-9_]+")


@cache
def standard_classes() -> tuple[str, ...]:
    import os_resource_classes

    return tuple(os_resource_classes.STANDARDS)


@cache
def standard_traits() -> frozenset[str]:
    import os_traits

    return frozenset(os_traits.get_traits())


async def ensure_rows(tx: Transaction, table: str, names: Iterable[str]) -> None:
    """Insert the missing rows of classes or traits, so that other rows can refer to them."""
    needed = sorted(names)
    existing = {row["name"] for row in await tx.fetch(f"SELECT name FROM {table} WHERE name = ANY($1)", needed)}
    missing = [name for name in needed if name not in existing]
    if missing:
        now = clock.now()
        await tx.execute_many(INSERT_NAME.format(table), [(name, now) for name in missing])


async def unknown_classes(reader: Reader, names: Iterable[str]) -> list[str]:
    """The names that are no resource class, sorted."""
    return await _unknown(reader, "resource_classes", set(names).difference(standard_classes()))


async def unknown_traits(reader: Reader, names: Iterable[str]) -> list[str]:
    """The names that are no trait, sorted."""
    return await _unknown(reader, "traits", set(names) - standard_traits())


async def _unknown(reader: Reader, table: str, custom: set[str]) -> list[str]:
    if not custom:
        return []
    rows = await reader.fetch(f"SELECT name FROM {table} WHERE name = ANY($1)", sorted(custom))
    return sorted(custom - {row["name"] for row in rows})


def class_sort_key(name: str) -> tuple[int, str]:
    """Sorts standard classes first, in the order of os_resource_classes, then custom classes by name."""
    standard = standard_classes()
    return (standard.index(name) if name in standard else len(standard), name)
