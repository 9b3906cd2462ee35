"""Endpoints for monitoring: /healthz, /readyz and /metrics. They need no token and have no version."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from kilonova import store
from kilonova.http import Response

if TYPE_CHECKING:
    from kilonova.http.app import StatusPage
    from kilonova.services import Services
    from kilonova.telemetry.metrics import Gauge

TEXT = {"Content-Type": "text/plain; charset=utf-8"}
EXPOSITION = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
DATABASE_TIMEOUT_SECONDS = 2.0
# How long a write that failed because storage is full counts. Heartbeats write more often.
FULL_SECONDS = 15.0


def monitoring_endpoints(
    services: Services,
    is_ready: Callable[[], bool],
    gauge_sources: Sequence[Callable[[Services], Awaitable[list[Gauge]]]],
) -> dict[str, StatusPage]:
    """`is_ready`: whether the process accepts requests. `gauge_sources` are called at each scrape."""

    async def healthz() -> Response:
        return Response(b"ok\n", headers=TEXT)

    async def readyz() -> Response:
        if not is_ready():
            return Response(b"starting or stopping\n", 503, TEXT)
        try:
            async with asyncio.timeout(DATABASE_TIMEOUT_SECONDS):
                await services.db.fetch_value("SELECT 1")
        except (store.StoreError, TimeoutError):
            return Response(b"the database does not answer\n", 503, TEXT)
        if time.monotonic() - services.db.last_full_at < FULL_SECONDS:
            return Response(b"storage is full\n", 503, TEXT)
        return Response(b"ok\n", headers=TEXT)

    async def metrics() -> Response:
        gauges = [gauge for source in gauge_sources for gauge in await source(services)]
        return Response(services.metrics.exposition(gauges), headers=EXPOSITION)

    return {"/healthz": healthz, "/readyz": readyz, "/metrics": metrics}
