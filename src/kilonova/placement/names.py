"""The standard classes and traits, which exist without a row, and those that operators made."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

from kilonova import clock
from kilonova.store import Reader, Transaction

# A class or trait that may be there already.
INSERT = "INSERT INTO {} (name, created_at, updated_at) VALUES ($1, $2, $2) ON CONFLICT DO NOTHING"
CUSTOM = re.compile(r"CUSTOM_[A-Z0-9_]+")


@cache
def standard_classes() -> tuple[str, ...]:
    import os_resource_classes

    return tuple(os_resource_classes.STANDARDS)


@cache
def standard_traits() -> frozenset[str]:
    import os_traits

    return frozenset(os_traits.get_traits())


async def ensure(tx: Transaction, table: str, names: Iterable[str]) -> None:
    """Have a row for every class or trait that somebody refers to."""
    wanted = sorted(names)
    there = {row["name"] for row in await tx.fetch(f"SELECT name FROM {table} WHERE name = ANY($1)", wanted)}
    missing = [name for name in wanted if name not in there]
    if missing:
        now = clock.now()
        await tx.execute_many(INSERT.format(table), [(name, now) for name in missing])


async def unknown_classes(reader: Reader, names: Iterable[str]) -> list[str]:
    """Those of the names that are no class, in order."""
    return await _unknown(reader, "resource_classes", set(names).difference(standard_classes()))


async def unknown_traits(reader: Reader, names: Iterable[str]) -> list[str]:
    """Those of the names that are no trait, in order."""
    return await _unknown(reader, "traits", set(names) - standard_traits())


async def _unknown(reader: Reader, table: str, custom: set[str]) -> list[str]:
    if not custom:
        return []
    rows = await reader.fetch(f"SELECT name FROM {table} WHERE name = ANY($1)", sorted(custom))
    return sorted(custom - {row["name"] for row in rows})


def class_order(name: str) -> tuple[int, str]:
    """Standard classes as their library has them, then the others by name."""
    standard = standard_classes()
    return (standard.index(name) if name in standard else len(standard), name)
