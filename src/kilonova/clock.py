"""The current time, and the time formats of the API.

A control-plane process keeps time itself (`kilonova.clock_sync`), so that a step of the machine's clock neither ends
leases nor makes hosts count as down. docs/decisions/0023-clocks.md gives the reasons. Other processes use the machine's
clock.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime


class SteadyClock:
    """A clock that steps of the machine's clock do not change, and that runs on while the machine is suspended.

    It never goes back. To follow a reference, it runs faster or slower.
    """

    def __init__(self, moment: float) -> None:
        self._set(moment)

    def _set(self, moment: float, rate: float = 1.0) -> None:
        self._moment, self._at, self._rate = moment, _uptime(), rate

    def now(self) -> float:
        return self._moment + (_uptime() - self._at) * self._rate

    def step_to(self, moment: float) -> None:
        self._set(moment)

    def approach(self, reference: float, seconds: float, max_deviation: float) -> None:
        """Reach the reference in that time, unless the rate would deviate by more than `max_deviation`."""
        now = self.now()
        self._set(now, 1.0 + max(-max_deviation, min((reference - now) / seconds, max_deviation)))


def _uptime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


_steady: SteadyClock | None = None


def use(steady: SteadyClock | None) -> None:
    """Keep time by this clock; None: by the machine's."""
    global _steady
    _steady = steady


def now() -> float:
    """Return epoch seconds, rounded to the API's microseconds: a client may send a time back that it was shown."""
    return round(wall() if _steady is None else _steady.now(), 6)


def wall() -> float:
    """The machine's clock, which may step. Times of files are measured by it."""
    return time.time()


def iso(moment: float) -> str:
    """`2026-01-02T03:04:05Z`, as server views write times."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(moment))


def iso_micro(moment: float) -> str:
    """`2026-01-02T03:04:05.000000`, as services and actions write times."""
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="microseconds").removesuffix("+00:00")


def parse(text: str) -> float:
    """Return the epoch seconds of an ISO 8601 time. Without a zone it is UTC. Raises ValueError."""
    moment = datetime.fromisoformat(text.strip())
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return moment.timestamp()
