"""Finds filters and weighers by name: built in, an entry point of an installed package, or any module."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points
from typing import Any

FILTERS = "kilonova.scheduler.filters"
WEIGHERS = "kilonova.scheduler.weighers"


def find(group: str, name: str) -> Any:
    """The module of a filter or weigher. `group` is both the built-in package and the entry point group.

    Raises ValueError if it cannot be loaded.
    """
    try:
        if _is_built_in(group, name):
            return importlib.import_module(f"{group}.{name}")
        entry = _entry_point(group, name)
        if entry is not None:
            return entry.load()
        if "." in name:
            return importlib.import_module(name)
    except (ImportError, AttributeError) as error:
        raise _not_found(group, name, str(error)) from error
    raise _not_found(group, name, "not built in, and not an entry point of an installed package")


def check(group: str, names: Iterable[str]) -> None:
    """Raise ValueError for an unknown name. Loads no module, so that the process starts fast."""
    for name in names:
        if not _is_built_in(group, name) and _entry_point(group, name) is None and not _is_module(name):
            raise _not_found(group, name, "not built in, and not an entry point of an installed package")


def _is_built_in(group: str, name: str) -> bool:
    return name.isidentifier() and importlib.util.find_spec(f"{group}.{name}") is not None


def _entry_point(group: str, name: str) -> EntryPoint | None:
    return next(iter(entry_points(group=group, name=name)), None)


def _is_module(name: str) -> bool:
    try:
        return "." in name and importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _not_found(group: str, name: str, why: str) -> ValueError:
    return ValueError(f"there is no scheduler {group.rpartition('.')[2][:-1]} {name!r}: {why}")
