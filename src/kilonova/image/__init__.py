"""The built-in image service (Image API v2), and the client to it or to a real Glance."""

from __future__ import annotations

import importlib
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kilonova.http import Api

# Modules that declare routes.
NOUNS = ("discovery", "images.api", "images.upload", "images.download", "images.actions", "members", "host_data")


@cache
def build(*, for_hosts_only: bool = False) -> Api:
    """The whole API, or beside a real Glance the routes for hosts only."""
    from kilonova.image.api import api

    for noun in NOUNS:
        importlib.import_module(f"kilonova.image.{noun}")
    api.compile([])
    return api.for_hosts_only() if for_hosts_only else api
