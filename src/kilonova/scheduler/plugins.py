"""Finds filters and weighers by name: our own, one of an installed package, or any module."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points
from typing import Any

FILTERS = "kilonova.scheduler.filters"
WEIGHERS = "kilonova.scheduler.weighers"


def find(group: str, name: str) -> Any:
    """The module of that name. `group` is both the package of our own ones and the entry points of others'.

    Raises ValueError if there is none.
    """
    try:
        if _is_ours(group, name):
            return importlib.import_module(f"{group}.{name}")
        entry = _entry(group, name)
        if entry is not None:
            return entry.load()
        if "." in name:
            return importlib.import_module(name)
    except (ImportError, AttributeError) as trouble:
        raise _missing(group, name, str(trouble)) from trouble
    raise _missing(group, name, "it is neither built in nor an entry point of an installed package")


def check(group: str, names: Iterable[str]) -> None:
    """Raises ValueError for a name that is none. Loads nothing, so that it can be asked when the process starts."""
    for name in names:
        if not _is_ours(group, name) and _entry(group, name) is None and not _is_module(name):
            raise _missing(group, name, "it is neither built in nor an entry point of an installed package")


def _is_ours(group: str, name: str) -> bool:
    return name.isidentifier() and importlib.util.find_spec(f"{group}.{name}") is not None


def _entry(group: str, name: str) -> EntryPoint | None:
    return next(iter(entry_points(group=group, name=name)), None)


def _is_module(name: str) -> bool:
    try:
        return "." in name and importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _missing(group: str, name: str, why: str) -> ValueError:
    return ValueError(f"there is no scheduler {group.rpartition('.')[2][:-1]} {name!r}: {why}")
