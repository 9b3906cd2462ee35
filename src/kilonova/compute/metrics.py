"""Gauges about servers and guests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kilonova.compute import power_state_sync

if TYPE_CHECKING:
    from kilonova.services import Services
    from kilonova.telemetry.metrics import Gauge

_SERVERS = "SELECT vm_state, COUNT(*) AS number FROM servers WHERE NOT deleted GROUP BY vm_state ORDER BY vm_state"


async def gauges(services: Services) -> list[Gauge]:
    unknown = power_state_sync.count_unknown_guests(services).items()
    return [
        (
            "kilonova_servers",
            "Servers by state",
            ["state"],
            [([row["vm_state"]], float(row["number"])) for row in await services.db.fetch(_SERVERS)],
        ),
        (
            "kilonova_unknown_guests",
            "Guests that belong to no server, by the host that reports them to this process",
            ["host"],
            [([host], float(number)) for host, number in unknown],
        ),
    ]
