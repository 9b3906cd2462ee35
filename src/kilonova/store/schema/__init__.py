"""The schema: importing this package loads the tables of all services."""

from __future__ import annotations

import importlib
import pkgutil

from kilonova.store.schema.base import metadata

__all__ = ["metadata"]

for _module in sorted(pkgutil.iter_modules(__path__), key=lambda found: found.name):
    importlib.import_module(f"{__name__}.{_module.name}")
