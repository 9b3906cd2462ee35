"""Keeps the time of a control-plane process: that of the database's server, or with SQLite that of this machine.

docs/decisions/0023-clocks.md gives the reasons for these rules.
"""

from __future__ import annotations

import asyncio
import logging
import time

from kilonova import clock
from kilonova.store import Database, StoreError

log = logging.getLogger(__name__)

INTERVAL_SECONDS = 10.0
# The clock runs at most this much faster or slower. An hour takes ten hours.
MAX_DEVIATION = 0.1
# A larger difference is no step of a running clock, but a clock that was never set.
MAX_DIFFERENCE_SECONDS = 86400.0
LOGGED_DIFFERENCE_SECONDS = 5.0

_SERVER_TIME = "SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS DOUBLE PRECISION) AS now"
_LAST_REPORT = "SELECT MAX(last_seen_at) AS latest FROM services"


class ClockSync:
    """`report_seconds`: the interval of heartbeats. The last one tells how late it was when a process last ran."""

    def __init__(self, db: Database, *, report_seconds: float) -> None:
        self._db = db
        self._report_seconds = report_seconds
        self._steady = clock.SteadyClock(clock.wall())
        self._has_differed = False

    async def start(self) -> None:
        """Set the clock. The cloud's time never goes back, also if the machine's did while no process ran."""
        reference = await self._reference()
        latest: float = await self._db.fetch_value(_LAST_REPORT) or 0.0
        ahead = latest - reference
        if 0 < ahead <= MAX_DIFFERENCE_SECONDS:
            log.warning("the clock was set back while no process ran; time goes on from the last report")
            reference = latest + self._report_seconds
        elif ahead > 0:
            log.error("the clock is %.0f hours behind the last report; check the clock of this machine", ahead / 3600)
        self._steady.step_to(reference)
        clock.use(self._steady)

    async def run(self) -> None:
        """Follow the reference until cancelled."""
        try:
            while True:
                await asyncio.sleep(INTERVAL_SECONDS)
                try:
                    self.follow(await self._reference())
                except StoreError:
                    self._steady.step_to(self._steady.now())  # the clock goes on without the reference
        finally:
            clock.use(None)

    def follow(self, reference: float) -> None:
        """Approach the reference. If the database's server is ahead, this machine was suspended: go on from there."""
        difference = reference - self._steady.now()
        differs = abs(difference) > LOGGED_DIFFERENCE_SECONDS
        if differs and not self._has_differed:
            log.warning("the clock differs by %.1f seconds and is adjusted", difference)
        self._has_differed = differs
        is_behind = self._db.dialect == "postgresql" and difference > LOGGED_DIFFERENCE_SECONDS
        if is_behind or abs(difference) > MAX_DIFFERENCE_SECONDS:
            self._steady.step_to(reference)
        else:
            self._steady.approach(reference, INTERVAL_SECONDS, MAX_DEVIATION)

    async def _reference(self) -> float:
        if self._db.dialect != "postgresql":
            return clock.wall()
        asked_at = time.monotonic()
        server: float = await self._db.fetch_value(_SERVER_TIME)
        return server + (time.monotonic() - asked_at) / 2
