"""The built-in share service (Shared File System API v2), and the client to it or to a real Manila.

A noun with routes is a module of this package, or a subpackage with a module `api`.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kilonova.http import Api


@cache
def build() -> Api:
    from kilonova.http.versions import load
    from kilonova.module_discovery import import_all
    from kilonova.share import versions
    from kilonova.share.api import api

    import_all(__name__, __path__)
    api.compile(load(versions))
    return api
