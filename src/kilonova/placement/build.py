"""Imports the route modules of the Placement API and compiles them with its microversions."""

from __future__ import annotations

import importlib
from functools import cache

from kilonova.http import Api

ROUTE_MODULES = (
    "rest.discovery",
    "rest.providers",
    "rest.inventories",
    "rest.usages",
    "rest.aggregates",
    "rest.traits",
    "rest.resource_classes",
    "rest.allocations",
    "rest.reshaper",
    "candidates.api",
)


@cache
def build() -> Api:
    from kilonova.http.versions import load
    from kilonova.placement import versions
    from kilonova.placement.api import api

    for name in ROUTE_MODULES:
        importlib.import_module(f"kilonova.placement.{name}")
    api.compile(load(versions))
    return api
