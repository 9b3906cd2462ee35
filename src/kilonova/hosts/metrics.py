"""Gauges about services."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kilonova import clock

if TYPE_CHECKING:
    from kilonova.services import Services
    from kilonova.telemetry.metrics import Gauge

_SERVICES = """
SELECT program, CASE WHEN forced_down OR last_seen_at < $1 THEN 'down' ELSE 'up' END AS state, COUNT(*) AS number
FROM services GROUP BY 1, 2 ORDER BY 1, 2
"""


async def gauges(services: Services) -> list[Gauge]:
    rows = await services.db.fetch(_SERVICES, clock.now() - services.config.hosts.down_seconds)
    return [
        (
            "kilonova_services",
            "Services by program, and whether they are up",
            ["program", "state"],
            [([row["program"], row["state"]], float(row["number"])) for row in rows],
        )
    ]
