"""Imports the modules of a package, so that packages of routes and operations need no list of their modules."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from importlib.util import find_spec
from pkgutil import iter_modules


def import_all(package: str, path: Iterable[str]) -> None:
    """Import every module of the package, and of each subpackage its module `api`, if there is one."""
    for module in iter_modules(path):
        name = f"{package}.{module.name}"
        if not module.ispkg:
            importlib.import_module(name)
        elif find_spec(f"{name}.api"):
            importlib.import_module(f"{name}.api")
