"""Periodic task: purge old rows of all services, if `retention.purge` is set."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kilonova import purge

if TYPE_CHECKING:
    from kilonova.services import Services

log = logging.getLogger(__name__)

INTERVAL_SECONDS = 3600.0


async def run(services: Services) -> None:
    retention = services.config.retention
    if not retention.purge:
        return
    counts = await purge.purge(services.db, retention)
    if any(counts.values()):
        log.info("purged old rows", extra={"rows": {table: number for table, number in counts.items() if number}})
