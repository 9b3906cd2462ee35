"""Gathers the routes of the Placement API and compiles them with its microversions."""

from __future__ import annotations

import importlib
from functools import cache

from kilonova.http import Api

# Modules that declare routes and views.
NOUNS = (
    "rest.documents",
    "rest.providers",
    "rest.inventories",
    "rest.usages",
    "rest.aggregates",
    "rest.traits",
    "rest.classes",
    "rest.allocations",
    "rest.reshaper",
    "candidates.api",
)


@cache
def build() -> Api:
    from kilonova.http.versions import load
    from kilonova.placement import versions
    from kilonova.placement.api import api

    for noun in NOUNS:
        importlib.import_module(f"kilonova.placement.{noun}")
    api.compile(load(versions))
    return api
