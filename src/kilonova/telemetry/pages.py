"""Pages for machines: health, readiness and metrics. They need no token and have no version."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from kilonova import clock, store
from kilonova.http import Answer
from kilonova.operations import views

if TYPE_CHECKING:
    from kilonova.http.app import Plain
    from kilonova.services import Services
    from kilonova.telemetry.metrics import Gauge

TEXT = {"Content-Type": "text/plain; charset=utf-8"}
EXPOSITION = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
PATIENCE = 2.0


def pages(services: Services, ready: Callable[[], bool]) -> dict[str, Plain]:
    """`ready` says whether the process takes requests: it has started, and is not about to stop."""

    async def healthz() -> Answer:
        return Answer(b"ok\n", headers=TEXT)

    async def readyz() -> Answer:
        if not ready():
            return Answer(b"starting or stopping\n", 503, TEXT)
        try:
            async with asyncio.timeout(PATIENCE):
                await services.db.fetch_value("SELECT 1")
        except (store.StoreError, TimeoutError):
            return Answer(b"the database does not answer\n", 503, TEXT)
        return Answer(b"ok\n", headers=TEXT)

    async def metrics() -> Answer:
        return Answer(services.metrics.exposition(await gauges(services)), headers=EXPOSITION)

    return {"/healthz": healthz, "/readyz": readyz, "/metrics": metrics}


async def gauges(services: Services) -> list[Gauge]:
    """What is counted in the database at the time of a scrape."""
    from kilonova.compute.power_states import unknown

    db = services.db
    operations = [([kind, state], float(number)) for (kind, state), number in (await views.counts(db)).items()]
    alive_since = clock.now() - services.config.hosts.down_seconds
    return [
        ("kilonova_operations", "Unfinished operations by kind and state", ["kind", "state"], operations),
        (
            "kilonova_operations_queue_age_seconds",
            "For how long the oldest operation that could run has waited for a worker",
            [],
            [([], await views.queue_age(db))],
        ),
        (
            "kilonova_services",
            "Services by program, and whether they are up",
            ["program", "state"],
            [([row["program"], row["state"]], float(row["number"])) for row in await db.fetch(_SERVICES, alive_since)],
        ),
        (
            "kilonova_servers",
            "Servers by state",
            ["state"],
            [([row["vm_state"]], float(row["number"])) for row in await db.fetch(_SERVERS)],
        ),
        (
            "kilonova_unknown_guests",
            "Guests that belong to no server, by the host that reports them to this process",
            ["host"],
            [([host], float(number)) for host, number in unknown(services).items()],
        ),
    ]


_SERVICES = """
SELECT program, CASE WHEN forced_down OR last_seen_at < $1 THEN 'down' ELSE 'up' END AS state, COUNT(*) AS number
FROM services GROUP BY 1, 2 ORDER BY 1, 2
"""
_SERVERS = "SELECT vm_state, COUNT(*) AS number FROM servers WHERE NOT deleted GROUP BY vm_state ORDER BY vm_state"
