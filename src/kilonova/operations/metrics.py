"""Gauges about operations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kilonova.operations import views

if TYPE_CHECKING:
    from kilonova.services import Services
    from kilonova.telemetry.metrics import Gauge


async def gauges(services: Services) -> list[Gauge]:
    unfinished = (await views.count_unfinished(services.db)).items()
    return [
        (
            "kilonova_operations",
            "Unfinished operations by kind and state",
            ["kind", "state"],
            [([kind, state], float(number)) for (kind, state), number in unfinished],
        ),
        (
            "kilonova_operations_queue_age_seconds",
            "For how long the oldest operation that could run has waited for a worker",
            [],
            [([], await views.oldest_wait_seconds(services.db))],
        ),
    ]
