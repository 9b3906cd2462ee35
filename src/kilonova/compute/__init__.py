"""The compute service. `build` imports all modules with routes and compiles them with the microversions.

A noun with routes is a module of this package, or a subpackage with a module `api`.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kilonova.http import Api


@cache
def build() -> Api:
    import kilonova.compute.servers.actions  # noqa: F401  declares the actions
    from kilonova.compute import versions
    from kilonova.compute.api import api
    from kilonova.http.versions import load
    from kilonova.module_discovery import import_all

    import_all(__name__, __path__)
    api.compile(load(versions))
    return api
