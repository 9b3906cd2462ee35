"""The built-in volume service (Block Storage API v3). `build` gathers the nouns' routes and compiles them."""

from __future__ import annotations

import importlib
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kilonova.http import Api

# Modules that declare routes and views.
NOUNS = (
    "documents.api",
    "volumes.api",
    "volumes.actions",
    "volumes.metadata",
    "types.api",
    "snapshots.api",
    "snapshots.metadata",
    "attachments.api",
    "transfers.api",
    "messages.api",
    "quotas.api",
    "services.api",
)


@cache
def build() -> Api:
    from kilonova.http.versions import load
    from kilonova.volume import versions
    from kilonova.volume.api import api

    for noun in NOUNS:
        importlib.import_module(f"kilonova.volume.{noun}")
    api.compile(load(versions))
    return api
