"""What time brings: small jobs that a worker process looks after, one file each, every one safe to be done by many.

A duty is a module with `EVERY`, in seconds, and `async def run(services)`, which begins operations where they are due.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import pkgutil
import sys
from types import ModuleType
from typing import TYPE_CHECKING

from kilonova.store import StoreError
from kilonova.volume import duties as volume_duties

if TYPE_CHECKING:
    from kilonova.services import Services

log = logging.getLogger(__name__)


def duties() -> list[ModuleType]:
    """Those of the built-in volume service too: it has no workers of its own."""
    packages = (sys.modules[__name__], volume_duties)
    found = [
        (package.__name__, module.name) for package in packages for module in pkgutil.iter_modules(package.__path__)
    ]
    return [importlib.import_module(f"{package}.{name}") for package, name in found]


async def attend(services: Services) -> None:
    """See to all of them until cancelled."""
    await asyncio.gather(*(_see_to(duty, services) for duty in duties()))


async def _see_to(duty: ModuleType, services: Services) -> None:
    while True:
        await asyncio.sleep(duty.EVERY)
        try:
            await duty.run(services)
        except StoreError as trouble:
            log.warning("%s: not this time: %s", duty.__name__, trouble)
        except Exception:
            log.exception("%s failed", duty.__name__)
