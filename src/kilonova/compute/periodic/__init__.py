"""Periodic tasks of worker processes, one file each. Several workers may run the same task at the same time.

A task is a module with `INTERVAL_SECONDS` and `async def run(services)`, which begins the operations that are due.
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
from kilonova.volume import periodic as volume_periodic

if TYPE_CHECKING:
    from kilonova.services import Services

log = logging.getLogger(__name__)


def tasks() -> list[ModuleType]:
    """The tasks of compute and of the built-in volume service, which has no workers of its own."""
    packages = (sys.modules[__name__], volume_periodic)
    found = [
        (package.__name__, module.name) for package in packages for module in pkgutil.iter_modules(package.__path__)
    ]
    return [importlib.import_module(f"{package}.{name}") for package, name in found]


async def run_tasks(services: Services) -> None:
    """Run all tasks until cancelled."""
    await asyncio.gather(*(_repeat(task, services) for task in tasks()))


async def _repeat(task: ModuleType, services: Services) -> None:
    while True:
        await asyncio.sleep(task.INTERVAL_SECONDS)
        try:
            await task.run(services)
        except StoreError as trouble:
            log.warning("%s: skipped until the next interval: %s", task.__name__, trouble)
        except Exception:
            log.exception("%s failed", task.__name__)
